"""`outlay.explore`: what other mesh shapes and layouts would hold where; arithmetic alone, nothing is compiled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from outlay.core.error_types import LayoutError, ShowError
from outlay.core.one_line import OneLine
from outlay.core.public_names import called_as
from outlay.core.quantities import counted, format_bytes
from outlay.layout.layout import Layout
from outlay.layout.placement import spec_text
from outlay.layout.plan import Plan
from outlay.layout.strategies import data_parallel, fsdp, tensor_parallel, zero1
from outlay.program.program import Program
from outlay.render.page import Column, Notes, Page, Row, Section, Table
from outlay.render.pictures import Explorer
from outlay.render.report import Report

_MOST_SHAPES, _MOST_LEAVES = 24, 60
"""Shapes of the mesh that are tried, and the largest leaves that the page lists: a page is a file to mail."""


@dataclass(frozen=True)
class Alternative(OneLine):
    """One mesh shape with one layout.

    Attributes:
        mesh: the axes, such as `data=4,model=2`.
        layout: the name of the layout.
        plan: where every leaf would live; None if the layout is refused there.
        why_not: why it is refused, in a line; empty if it is not.
    """

    mesh: str
    layout: str
    plan: Plan | None
    why_not: str = ""

    @property
    def bytes_per_device(self) -> int | None:
        """Bytes of the state on the fullest device; None if the layout is refused there."""
        return max(self.plan.bytes_per_device.values(), default=0) if self.plan else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "mesh": self.mesh,
            "layout": self.layout,
            "bytes_per_device": self.bytes_per_device,
            "replication": self.plan.replication if self.plan else None,
            "why_not": self.why_not,
        }


@dataclass(frozen=True)
class Exploration(Report):
    """Every mesh shape with every layout; returned by `outlay.explore`. A notebook shows a page to choose from.

    Attributes:
        name: what is laid out.
        chosen: the mesh and the layout that it has now.
        alternatives: every mesh shape with every layout.
    """

    name: str
    chosen: tuple[str, str]
    alternatives: tuple[Alternative, ...]

    def __iter__(self) -> Iterator[Alternative]:
        return iter(self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"name": self.name, "chosen": list(self.chosen), "alternatives": [each.to_dict() for each in self]}

    def _in_short(self) -> str:
        num_refused = sum(each.plan is None for each in self)
        refused = f", {num_refused} of them refused" if num_refused else ""
        return f"{self.name} in {counted(len(self.alternatives), 'way')} to lay it out{refused}"

    def _page(self) -> Page:
        columns = [Column("mesh", "code"), Column("layout"), Column("a device", "number"), Column("copies", "number")]
        rows = [
            Row([each.mesh, each.layout, *_figures(each)], "strong" if self._is_chosen(each) else "")
            for each in self
            if each.plan
        ]
        refused = [f"{each.mesh} {each.layout}: {each.why_not}" for each in self if each.plan is None]
        return Page(
            title=f"{self.name}: choose a mesh and a layout",
            headline=self._in_short(),
            blocks=[
                Explorer(self._view(), medium="html"),
                Section("all of them", [Table(columns, rows, limit=40)]),
                *([Section("refused", [Notes(refused, label="")])] if refused else []),
            ],
            footer="Arithmetic alone: no program was compiled, so it says nothing of communication and time.",
        )

    def _is_chosen(self, each: Alternative) -> bool:
        return (each.mesh, each.layout) == self.chosen

    def _view(self) -> dict[str, Any]:
        """Return what the page's script reads: the names once, and of each alternative its figures."""
        plans = [each.plan for each in self if each.plan]
        largest = (
            sorted(plans[0], key=lambda leaf: (-leaf.bytes_per_device, -leaf.bytes_total))[:_MOST_LEAVES]
            if plans
            else []
        )
        return {
            "meshes": list(dict.fromkeys(each.mesh for each in self)),
            "layouts": list(dict.fromkeys(each.layout for each in self)),
            "chosen": list(self.chosen),
            "leaves": [[leaf.path, str(leaf.shape), leaf.dtype] for leaf in largest],
            "more": len(plans[0]) - len(largest) if plans else 0,
            "ways": {f"{each.mesh} {each.layout}": _way(each, [leaf.path for leaf in largest]) for each in self},
        }


@called_as("outlay.explore(program)", html="Path('page.html').write_text(outlay.explore(program).to_html())")
def explore(
    program: Program, layouts: Mapping[str, Layout] | None = None, *, meshes: list[str] | None = None
) -> Exploration:
    """Lay a program out on other mesh shapes and by other layouts, without compiling: bytes and copies of every leaf.

    In a notebook it is a page on which mesh and layout are chosen, and the plan follows.

    Args:
        program: the program; its state and batch are laid out, by shapes alone.
        layouts: layouts by name; by default the program's own and the usual strategies.
        meshes: mesh shapes as text, such as `data=4,model=2`; by default all shapes of as many devices, over the axes
            of the program's mesh and `model`.

    Example:
        >>> batch, init = np.ones((8, 16), np.float32), lambda key: {"w": jax.random.normal(key, (16, 32))}
        >>> step = lambda state, batch: (state, batch.mean())
        >>> program = outlay.program(
        ...     step, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> {each.mesh: each.bytes_per_device for each in outlay.explore(program) if each.layout == "fsdp"}["data=8"]
        256
    """
    if not hasattr(program, "plan"):
        raise ShowError(
            f"outlay.explore takes a program, and this is a {type(program).__name__}"
            "\n  fix: outlay.explore(program); for a recipe, the command outlay show digits --explore --html page.html"
        )
    sizes = program.plan.mesh.axis_sizes
    own = ",".join(f"{name}={size}" for name, size in sizes.items())
    ways = {"as it is": program.layout, **_strategies()} if layouts is None else dict(layouts)
    name = next((name for name, layout in ways.items() if layout == program.layout), "as it is")
    shapes = meshes or [own, *(text for text in _shapes(list(sizes), math.prod(sizes.values())) if text != own)]
    alternatives = [_alternative(program, text, name, layout) for text in shapes for name, layout in ways.items()]
    if layouts is None:  # a usual strategy that fits nowhere, as zero1 without an optimizer, is no alternative
        fitting = {each.layout for each in alternatives if each.plan or each.layout == name}
        alternatives = [each for each in alternatives if each.layout in fitting]
    return Exploration(getattr(program.step, "__name__", "step"), (own, name), tuple(alternatives))


def _strategies() -> dict[str, Layout]:
    return {
        "data parallel": data_parallel(),
        "zero1": zero1() + data_parallel(),
        "fsdp": fsdp(min_size=1) + data_parallel(),
        "fsdp + tensor parallel": tensor_parallel() + fsdp(min_size=1) + data_parallel(),
    }


def _shapes(names: list[str], num: int) -> list[str]:
    """Return the shapes of so many devices over these axes, and over `model` beside a single one."""
    names = [*names, "model"] if len(names) == 1 and names != ["model"] else names
    sizes = [size for size in range(1, num + 1) if num % size == 0]
    shapes = (shape for shape in itertools.product(sizes, repeat=len(names)) if math.prod(shape) == num)
    texts = (",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True)) for shape in shapes)
    return list(itertools.islice(texts, _MOST_SHAPES))


def _alternative(program: Program, text: str, name: str, layout: Layout) -> Alternative:
    sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in text.split(","))}
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    try:
        plan = layout.plan(program.state_shapes, mesh, batch=program.batch_shapes, intermediates=program.named_shapes)
        return Alternative(text, name, plan)
    except LayoutError as error:
        first = error.problems[0] if error.problems else None
        why = f"{first.kind}: {first.where}, {first.what}" if first else str(error)
        return Alternative(text, name, None, why.splitlines()[0][:200])


def _figures(each: Alternative) -> tuple[str, str]:
    if each.plan is None:
        return "-", "-"
    return format_bytes(each.bytes_per_device or 0), f"{each.plan.replication:.2f}"


def _way(each: Alternative, paths: list[str]) -> dict[str, Any]:
    if each.plan is None:
        return {"why": each.why_not}
    leaves = {leaf.path: leaf for leaf in each.plan}
    return {
        "device": format_bytes(each.bytes_per_device or 0),
        "bytes": each.bytes_per_device,
        "copies": f"{each.plan.replication:.2f}",
        "leaves": [
            [spec_text(leaves[path].spec), format_bytes(leaves[path].bytes_per_device), leaves[path].num_copies]
            for path in paths
        ],
    }
