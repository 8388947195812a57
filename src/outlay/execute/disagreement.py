"""What is said in every process of a job where they are about to run different things."""

from __future__ import annotations

import difflib
import itertools
import operator
import re
from collections.abc import Mapping, Sequence

from outlay.execute.facts import Facts

_NUM_LINES = 3
_WIDTH = 120
_NUMBERED = re.compile(r"%\w+")  # a value; one operation more gives all that follow another number
_WINDOW = 200  # lines from the first difference on that are compared; the time goes with its square
_CURES = {
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
        differing = [kind for kind in _CURES if hashes[usual][kind] != hashes[other][kind]]
        values = [kind for kind in differing if kind != "program"]
        lines += [_of_mapping(kind, getattr(found[other], kind), getattr(found[usual], kind)) for kind in values]
        if "program" in differing:
            one, two = (f"{hashes[group]['program']} ({found[group].where})" for group in (other, usual))
            lines.append(f"  program: {one}, there {two}")
        if not values:  # else another program is only the consequence
            lines += _first_lines(found[other].program, found[usual].program)
        kinds |= dict.fromkeys(values or differing)
    headline = "the processes are about to run different things, which would hang them or make wrong numbers"
    return "\n  ".join([headline, *lines, *(f"cure: {_CURES[kind]}" for kind in kinds)])


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
