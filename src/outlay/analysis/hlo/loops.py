"""How often each computation runs in one step: loops and calls between computations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from outlay.analysis.hlo.dtypes import total_bytes
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.trip_count import derived_trip_count

_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-")
_DEARER = 10  # links are so much slower than memory
_NAMES = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant")
_KNOWN = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d{1,15})')


def runs_per_step(module: HloModule) -> dict[str, tuple[int, bool]]:
    """For each computation that the entry reaches: how often it runs, and whether that is certain.

    A loop multiplies; one whose trip count the text does not tell counts once. Of the branches of a conditional the one
    that writes and sends most counts, the others not at all. Neither is certain. What fusions and reductions apply to
    elements is not followed.

    Args:
        module: the program.
    """
    runs: dict[str, tuple[int, bool]] = defaultdict(lambda: (0, True))
    if module.entry in module.computations:
        runs[module.entry] = (1, True)
    for name in _callers_first(module):
        times, exact = runs[name]
        for callee, factor, certain in _calls(module, module.computations[name]):
            before, before_exact = runs[callee]
            runs[callee] = (before + times * factor, before_exact and exact and certain)
    return dict(runs)


def trip_count(module: HloModule, computation: str, loop: Instruction) -> int | None:
    """How often a `while` runs its body; None where the text does not tell."""
    known = _KNOWN.search(loop.attributes.get("backend_config", ""))
    return int(known[1]) if known else derived_trip_count(module, computation, loop)


def _calls(module: HloModule, computation: Computation) -> Iterator[tuple[str, int, bool]]:
    """(computation, times, certain) of what this one runs, each time that it runs."""
    for one in computation.instructions.values():
        if one.opcode == "while":
            trips = trip_count(module, computation.name, one)
            times = 1 if trips is None else trips
            known = trips is not None
            calls = [(one.called("body"), times, known), (one.called("condition"), times + 1, known)]
        elif one.opcode == "conditional":
            dearest = max(one.calls, key=lambda name: _written(module, name), default="")
            calls = [(name, int(name == dearest), False) for name in one.calls]
        elif one.opcode in ("call", "async-start"):
            calls = [(name, 1, True) for name in one.calls]
        else:
            continue
        yield from (call for call in calls if call[0] in module.computations)


def _written(module: HloModule, name: str) -> int:
    """Bytes that a computation and all that it runs write, those over links more: a measure to compare branches by."""
    pending, seen, written = [name], set(), 0
    while pending:
        computation = module.computations.get(pending.pop())
        if computation is None or computation.name in seen:
            continue
        seen.add(computation.name)
        for one in computation.instructions.values():
            if one.opcode not in _NAMES:
                written += total_bytes(one.shapes) * (_DEARER if one.opcode.startswith(_COLLECTIVES) else 1)
            if one.opcode in ("while", "conditional", "call", "async-start"):
                pending += one.calls
    return written


def _callers_first(module: HloModule) -> list[str]:
    """Computations that the entry reaches, each after all that call it."""
    finished: list[str] = []
    seen = {module.entry}
    pending: list[tuple[str, Iterator[str]]] = []
    if module.entry in module.computations:
        pending.append((module.entry, _callees(module, module.entry)))
    while pending:
        name, callees = pending[-1]
        callee = next((one for one in callees if one not in seen), None)
        if callee is None:
            finished.append(name)
            pending.pop()
        else:
            seen.add(callee)
            pending.append((callee, _callees(module, callee)))
    return finished[::-1]


def _callees(module: HloModule, name: str) -> Iterator[str]:
    return (callee for callee, _, _ in _calls(module, module.computations[name]))
