"""Which layout a program has, and which dtypes, in a few lines: leaves that are placed alike count as one."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.core.paths import split_path
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_text
from outlay.layout.plan import Plan


@dataclass(frozen=True)
class PlacedAlike:
    """Leaves of one part of the state or batch with the same dtype and the same place.

    Attributes:
        part: the first name in their paths, such as `params`, `opt_state` or `batch`.
        dtype: their dtype.
        spec: how they are split, such as `P('data', None)`.
        on_host: whether they live in the host's memory.
        num_leaves: how many they are.
        bytes_per_device: their bytes on one device, or on its host.
        bytes_total: their bytes, each array counted once.
        example: the path of the largest.
    """

    part: str
    dtype: str
    spec: str
    on_host: bool
    num_leaves: int
    bytes_per_device: int
    bytes_total: int
    example: str


@dataclass(frozen=True)
class LayoutFacts:
    """A layout and what became of it.

    Attributes:
        names: the strategies and files that wrote its rules, in order; `own rules` for a user's.
        placed: the leaves, those of a part together, most bytes first.
    """

    names: tuple[str, ...]
    placed: tuple[PlacedAlike, ...]


def layout_facts(layout: Layout, plan: Plan) -> LayoutFacts:
    """Return the layout of a program, by what its plan made of it."""
    names = dict.fromkeys(rule.source or "own rules" for rule in layout.rules)
    alike: dict[tuple[str, str, str, bool], list[LeafPlan]] = {}
    for leaf in (*plan.state, *plan.of_kind("batch")):
        part = next(iter(split_path(leaf.path)), "")
        alike.setdefault((part, leaf.dtype, spec_text(leaf.spec), leaf.stored == "host"), []).append(leaf)
    placed = [
        PlacedAlike(
            part=part,
            dtype=dtype,
            spec=spec,
            on_host=on_host,
            num_leaves=len(leaves),
            bytes_per_device=sum(leaf.bytes_per_device for leaf in leaves),
            bytes_total=sum(leaf.bytes_total for leaf in leaves),
            example=max(leaves, key=lambda leaf: leaf.bytes_total).path,
        )
        for (part, dtype, spec, on_host), leaves in alike.items()
    ]
    held = {
        part: sum(one.bytes_per_device for one in placed if one.part == part) for part in {one.part for one in placed}
    }
    placed.sort(key=lambda one: (-held[one.part], one.part, -one.bytes_per_device))
    return LayoutFacts(tuple(names), tuple(placed))
