"""Processes compare what they are about to run: where they differ they would hang, or compute wrong numbers."""

from __future__ import annotations

import collections
import difflib
import hashlib
import itertools
import json
import operator
import re
import time
from collections.abc import Mapping, Sequence

from outlay.core.error_types import ProgramError
from outlay.jobs.joined import gather_all, part, patience, post, wait_for
from outlay.program.fingerprint import Facts

_num_compared: collections.Counter[tuple[int, ...]] = collections.Counter()


def agree(facts: Facts, process: int, processes: Sequence[int]) -> None:
    """Compare what this process is about to run with what the others are; all of them call this.

    Hashes are compared first, all by all. Only where they differ, one process of each kind sends the whole.

    Args:
        facts: of this process.
        process: which it is.
        processes: all that take part, this one among them.

    Raises:
        ProgramError: they differ, or some have not come; in every process that has.
    """
    key = _key(tuple(processes))
    post(f"{key}/{process}", json.dumps(facts.hashes))
    hashes = _all_hashes(key, facts.where, process, processes)
    groups = collections.defaultdict(list)
    for other in processes:
        groups[hashes[other]].append(other)
    if len(groups) == 1:
        return
    if process in [group[0] for group in groups.values()]:
        post(f"{key}/facts/{process}", facts.to_json())
    found = {tuple(group): _facts_of(key, group[0]) for group in groups.values()}
    part(f"{key}/read", processes)
    raise ProgramError(disagreement(found, {tuple(group): json.loads(text) for text, group in groups.items()}))


def meet_before(first_run_of: str, where: str, process: int, processes: Sequence[int]) -> None:
    """Go on when all have come here; the data of one may come minutes later than that of another.

    Args:
        first_run_of: what they are about to run.
        where: file and line of the step.
        process: which this is.
        processes: all that take part, this one among them.

    Raises:
        ProgramError: some have not come.
    """
    seconds = patience()
    missing = gather_all(f"{_key(tuple(processes))}/{first_run_of}", processes, process, seconds)
    if missing:
        raise ProgramError(_not_come(missing, processes, process, seconds, where))


def _key(processes: tuple[int, ...]) -> str:
    """Of this comparison, the same in all processes, since they compare the same things in the same order."""
    number = _num_compared[processes]
    _num_compared[processes] += 1
    return f"agree/{hashlib.sha256(repr(processes).encode()).hexdigest()[:12]}/{number}"


def _all_hashes(key: str, where: str, process: int, processes: Sequence[int]) -> dict[int, str]:
    seconds = patience()
    deadline = time.monotonic() + seconds
    found = {other: wait_for(f"{key}/{other}", deadline - time.monotonic()) for other in processes}
    missing = [other for other in processes if found[other] is None]
    if missing:
        raise ProgramError(_not_come(missing, processes, process, seconds, where))
    return {other: text for other, text in found.items() if text is not None}


def _not_come(missing: Sequence[int], processes: Sequence[int], process: int, seconds: float, where: str) -> str:
    return (
        f"{len(missing)} of {len(processes)} processes have not come to where process {process} has waited "
        f"{seconds:g} s to run its program ({where})\n  missing: {named(missing)}\n  fix: every process of a mesh "
        "makes and runs the same programs in the same order; where one just needs longer: outlay.join(timeout=...)"
    )


def _facts_of(key: str, process: int) -> Facts:
    text = wait_for(f"{key}/facts/{process}", patience())
    return Facts.from_json(text) if text else Facts({}, {}, "", "it ended before it said where")


_NUM_LINES = 3
_WIDTH = 120
_NUMBERED = re.compile(r"%\w+")  # a value; one operation more gives all that follow another number
_WINDOW = 200  # lines from the first difference on that are compared; the time goes with its square
_FIXES = {
    "config": "start all processes with the same options, files and versions",
    "data": "state and batch are global, so their shapes are the same in every process",
    "program": "what is traced must not depend on the process, its host or the time: look for jax.process_index()",
}

Hashes = Mapping[str, str]
Group = tuple[int, ...]


def disagreement(found: Mapping[Group, Facts], hashes: Mapping[Group, Hashes]) -> str:
    """The message: each group of processes against the largest of them, or the first of those.

    Args:
        found: by processes that are about to run the same, what that is.
        hashes: the hashes by which that was seen.
    """
    usual, *others = sorted(found, key=lambda group: (-len(group), group))
    lines: list[str] = []
    kinds: dict[str, None] = {}
    for other in others:
        lines.append(f"{named(other)} against {named(usual)}:")
        differing = [kind for kind in _FIXES if hashes[usual][kind] != hashes[other][kind]]
        values = [kind for kind in differing if kind != "program"]
        lines += [_of_mapping(kind, getattr(found[other], kind), getattr(found[usual], kind)) for kind in values]
        if "program" in differing:
            one, two = (f"{hashes[group]['program']} ({found[group].where})" for group in (other, usual))
            lines.append(f"  program: {one}, there {two}")
        if not values:  # else another program is only the consequence
            lines += _first_lines(found[other].program, found[usual].program)
        kinds |= dict.fromkeys(values or differing)
    headline = "the processes are about to run different things, which would hang them or make wrong numbers"
    return "\n  ".join([headline, *lines, *(f"fix: {_FIXES[kind]}" for kind in kinds)])


def named(processes: Sequence[int]) -> str:
    """Processes in a message.

    >>> named([3]), named([0, 1, 2])
    ('process 3', 'processes 0, 1, 2')
    """
    more = f", ... ({len(processes)} in all)" if len(processes) > 8 else ""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes[:8]))}{more}"


def _of_mapping(kind: str, other: Mapping[str, str], usual: Mapping[str, str]) -> str:
    first, *more = [name for name in {**usual, **other} if usual.get(name) != other.get(name)] or ["their order"]
    counted = f"; and {len(more)} more difference{'s' if len(more) > 1 else ''}" if more else ""
    return f"  {kind}: {first} is {other.get(first, 'absent')}, there {usual.get(first, 'absent')}{counted}"


def _first_lines(other: str, usual: str) -> list[str]:
    """The first lines in which two programs differ; none where one was too long to be sent."""
    if not other or not usual:
        return []
    lines, there = other.splitlines(), usual.splitlines()
    plain, plain_there = ([_NUMBERED.sub("%", line) for line in text] for text in (lines, there))
    same = sum(1 for _ in itertools.takewhile(operator.not_, map(operator.ne, plain, plain_there)))
    window = slice(same, same + _WINDOW)
    matcher = difflib.SequenceMatcher(None, plain_there[window], plain[window], autojunk=False)
    found = [
        f"    {sign} {line.strip()[:_WIDTH]}"
        for what, start, end, own_start, own_end in matcher.get_opcodes()
        if what != "equal"
        for sign, part in (("-", there[same + start : same + end]), ("+", lines[same + own_start : same + own_end]))
        for line in part
    ]
    return found[:_NUM_LINES]
