"""Messages of errors in at most 2 KB: how much is wrong, the first of it, and how to see the rest."""

from __future__ import annotations

from collections.abc import Sequence

MAX_BYTES = 1_900
"""UTF-8 bytes of a message. With the words that a command makes of it, it stays under 2 KB."""

WHERE_ALL_IS = "all of it: error.details in Python, or outlay --traceback COMMAND"
"""The last words of a message that was cut."""

_MAX_KINDS = 5
"""Kinds of problems that a message shows; of others it says the number."""

_GAP = " [...] "

_LEAST = 160
"""UTF-8 bytes in which a problem still says something."""


def brief(text: str, num_bytes: int = MAX_BYTES) -> str:
    r"""Cut a message to its first and its last lines, which say what is wrong and what to do.

    >>> print(brief("2 files are damaged:\n  a\n  b\n  fix: write them again"))
    2 files are damaged:
      a
      b
      fix: write them again
    >>> print(brief("\n".join(["300 files:", *(f"  file{i}" for i in range(300)), "  fix: write them"]), 200))
    300 files:
      file0
      file1
      file2
      file3
      file4
      file5
      file6
      file7
      ... and 291 lines more; all of it: error.details in Python, or outlay --traceback COMMAND
      file299
      fix: write them
    """
    if size(text) <= num_bytes:
        return text
    lines = text.split("\n")
    left = num_bytes - size(_rest(len(lines)))
    if left < _LEAST // 2 or len(lines) == 1:
        return _cut(text.replace("\n", " "), num_bytes)
    first = _cut(lines[0], left // 2)
    left -= size(first) + 1
    last = _fitting(list(reversed(lines[1:])), left // 3)[::-1]
    left -= sum(size(line) + 1 for line in last)
    middle = _fitting(lines[1 : len(lines) - len(last)], left)
    left_out = len(lines) - 1 - len(middle) - len(last)
    return "\n".join([first, *middle, *([_rest(left_out)] if left_out else []), *last])


def brief_listing(headline: str, problems: Sequence[tuple[str, str, int]]) -> str:
    """Join a headline and problems, of each kind the first ones.

    Args:
        headline: what is wrong with the whole, with its number.
        problems: the kind, the text and the number of the offenders of each.
    """
    whole = "\n".join([headline, *(text for _, text, _ in problems)])
    if size(whole) <= MAX_BYTES:
        return whole
    if not problems:
        return brief(headline)
    head, tail = brief(headline, MAX_BYTES // 3), f"  {WHERE_ALL_IS}"
    kinds = list(dict.fromkeys(kind for kind, _, _ in problems))
    left = MAX_BYTES - size(head) - size(tail) - 2
    lines = [head]
    for number, kind in enumerate(kinds[:_MAX_KINDS]):
        shown = _of_kind(
            kind, [problem for problem in problems if problem[0] == kind], left // (_num_kinds_shown(kinds) - number)
        )
        left -= size(shown) + 1
        lines.append(shown)
    if others := kinds[_MAX_KINDS:]:
        num = sum(num for kind, _, num in problems if kind in others)
        lines.append(f"  ... and {num} of {len(others)} other kinds")
    return "\n".join([*lines, tail])


def size(text: str) -> int:
    """Return the number of bytes that a text takes where it is written."""
    return len(text.encode(errors="replace"))


def _num_kinds_shown(kinds: Sequence[str]) -> int:
    return min(len(kinds), _MAX_KINDS + 1)


def _of_kind(kind: str, problems: Sequence[tuple[str, str, int]], num_bytes: int) -> str:
    """Return the first problems of a kind, at least one, and the number of the rest."""
    num = sum(num for _, _, num in problems)
    more = f"  ... and {num} more of {kind:.60}"
    left = num_bytes - size(more) - 1
    lines = [brief(problems[0][1], max(left, _LEAST))]
    left -= size(lines[0]) + 1
    num -= problems[0][2]
    for _, text, alike in problems[1:]:
        if (left := left - size(text) - 1) < 0:
            break
        lines.append(text)
        num -= alike
    return "\n".join([*lines, *([f"  ... and {num} more of {kind:.60}"] if num else [])])


def _fitting(lines: Sequence[str], num_bytes: int) -> list[str]:
    """Return as many of the first lines as fit; the first, if it is too long, with its middle left out."""
    fitting: list[str] = []
    for line in lines:
        if (num_bytes := num_bytes - size(line) - 1) < 0:
            if not fitting and num_bytes + size(line) > _LEAST:
                fitting = [_cut(line, num_bytes + size(line))]
            break
        fitting.append(line)
    return fitting


def _cut(line: str, num_bytes: int) -> str:
    """Leave out the middle of a line that is too long."""
    text, left = line.encode(errors="replace"), max(num_bytes - len(_GAP), 2)
    if len(text) <= num_bytes:
        return line
    first, last = text[: left - left // 3], text[-(left // 3) :]
    return f"{first.decode(errors='ignore')}{_GAP}{last.decode(errors='ignore')}"


def _rest(num: int) -> str:
    return f"  ... and {num} lines more; {WHERE_ALL_IS}"
