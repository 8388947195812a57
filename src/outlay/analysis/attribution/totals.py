"""Collectives added up, and gathered into the lines of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outlay.analysis.attribution.program_facts import CollectiveFacts, Phase
from outlay.analysis.hlo.hlo_module import SourceLine


@dataclass(frozen=True)
class Total:
    """Some collectives together.

    Attributes:
        num_collectives: how many stand in the program.
        num_runs: how often they run in a step.
        bytes_per_step: what a device sends for them.
        seconds: estimated for a step; None without a target.
    """

    num_collectives: int
    num_runs: int
    bytes_per_step: int
    seconds: float | None


@dataclass(frozen=True)
class Row:
    """Collectives that differ in nothing that a reader looks at, such as those of like layers.

    Attributes:
        kind: such as `all-gather`.
        axes: the mesh axes, as text.
        phase: the part of the step.
        module: the model's part.
        what: the leaf or value that is moved; numbers in paths of several are stars.
        source: the user's line.
        is_exact: whether the number of runs is known.
        total: of all of them.
    """

    kind: str
    axes: str
    phase: Phase
    module: str
    what: str
    source: SourceLine | None
    is_exact: bool
    total: Total


def total(collectives: Iterable[CollectiveFacts]) -> Total:
    """Some collectives added up."""
    found = list(collectives)
    seconds = [one.seconds * one.count for one in found if one.seconds is not None]
    return Total(
        len(found),
        sum(one.count for one in found),
        sum(one.bytes_per_step for one in found),
        sum(seconds) if len(seconds) == len(found) else None,
    )


def totals(collectives: Sequence[CollectiveFacts], name: Callable[[CollectiveFacts], str]) -> dict[str, Total]:
    """Collectives added up by some name, most bytes first."""
    groups: dict[str, list[CollectiveFacts]] = {}
    for one in collectives:
        groups.setdefault(name(one), []).append(one)
    added = {key: total(members) for key, members in groups.items()}
    return dict(sorted(added.items(), key=lambda item: -item[1].bytes_per_step))


def rows(collectives: Sequence[CollectiveFacts]) -> tuple[Row, ...]:
    """The lines of a table of collectives, most bytes first."""
    groups: dict[tuple, list[CollectiveFacts]] = {}
    for one in collectives:
        module, what = starred(one.module), starred(one.leaf or one.value)
        groups.setdefault((one.kind, one.axes, one.group_size, one.phase, module, what, one.source), []).append(one)
    found = []
    for (kind, axes, group_size, phase, _, _, source), members in groups.items():
        first = members[0]
        alike = len(members) == 1
        module = first.module if alike else starred(first.module)
        what = first.leaf or first.value
        what = what if alike or all((one.leaf or one.value) == what for one in members) else starred(what)
        exact = all(one.count_is_exact for one in members)
        named = "+".join(axes) or f"{group_size} devices"
        found.append(Row(kind, named, phase, module, what, source, exact, total(members)))
    return tuple(sorted(found, key=lambda row: -row.total.bytes_per_step))


def starred(path: str) -> str:
    """A path with its numbers as stars, so that like layers read the same.

    >>> starred("params.layers.11.kernel"), starred("MLP.Dense_0")
    ('params.layers.*.kernel', 'MLP.Dense_*')
    """
    return re.sub(r"(?<=[._\[])\d+(?=$|[.\]\s,])", "*", path)
