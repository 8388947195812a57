"""Processes compare what they are about to run: where they differ they would hang, or compute wrong numbers."""

from __future__ import annotations

import collections
import hashlib
import json
import time
from collections.abc import Sequence

from outlay.core.errors import ProgramError
from outlay.execute.disagreement import disagreement, named
from outlay.execute.facts import Facts
from outlay.launch.exchange import gather_all, part, patience, post, wait_for

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
        f"{seconds:g} s to run its program ({where})\n  missing: {named(missing)}\n  cure: every process of a mesh "
        "makes and runs the same programs in the same order; where one just needs longer: outlay.join(timeout=...)"
    )


def _facts_of(key: str, process: int) -> Facts:
    text = wait_for(f"{key}/facts/{process}", patience())
    return Facts.from_json(text) if text else Facts({}, {}, "", "it ended before it said where")
