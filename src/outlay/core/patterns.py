"""Glob patterns over whole dotted paths: `*` is one part (or a piece of one), `**` any number of parts."""

from __future__ import annotations

import functools
import re

from outlay.core.paths import Parts, split_path


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a whole path; both ends are anchored.

    >>> matches("params.**.kernel", "params.dense.kernel"), matches("params.**.kernel", "params.kernel")
    (True, True)
    >>> matches("kernel", "params.dense.kernel"), matches("layers.*.w*", "layers.0.weight")
    (False, True)
    """
    return _matcher(pattern)(split_path(path))


def first_part(pattern: str) -> str | None:
    """The pattern's first part when it is a plain name, else None (it begins with a wildcard).

    >>> first_part("opt_state.**"), first_part("**.kernel"), first_part("opt*.x")
    ('opt_state', None, None)
    """
    parts = pattern_parts(pattern)
    if not parts or _is_wild(parts[0]):
        return None
    return split_path(parts[0])[0]


@functools.lru_cache(maxsize=4096)
def pattern_parts(pattern: str) -> tuple[str, ...]:
    """A pattern's parts as written, quotes kept.

    >>> pattern_parts("params.**.'a.b'")
    ('params', '**', "'a.b'")
    """
    return tuple(_PATTERN_PIECE.findall(pattern))


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a pattern's writing, or None."""
    if not pattern:
        return "the pattern is empty; `**` matches every leaf"
    if pattern.startswith(".") or pattern.endswith(".") or ".." in re.sub(r"'[^']*'", "q", pattern):
        return "a dot at an end or two dots in a row leave an empty part"
    if ".".join(pattern_parts(pattern)) != pattern or any(map(_is_half_quoted, pattern_parts(pattern))):
        return "a quote opens or closes inside a part; quote whole parts: params.'a.b'.kernel"
    wrong = [part for part in pattern_parts(pattern) if _is_wild(part) and "**" in part and part != "**"]
    if wrong:
        return f"`**` stands for whole parts, so it cannot share a part: {wrong[0]!r}; write `*` inside a part"
    return None


def _is_wild(part: str) -> bool:
    return "*" in part and not part.startswith("'")


def _is_half_quoted(part: str) -> bool:
    return "'" in part and not _QUOTED.fullmatch(part)


@functools.lru_cache(maxsize=4096)
def _matcher(pattern: str):
    parts = pattern_parts(pattern)
    regexes = [None if part == "**" else _part_regex(part) for part in parts]

    def match(path: Parts) -> bool:
        return _match_from(regexes, 0, path, 0)

    return match


def _match_from(regexes: list[re.Pattern[str] | None], i: int, path: Parts, j: int) -> bool:
    if i == len(regexes):
        return j == len(path)
    regex = regexes[i]
    if regex is None:
        return any(_match_from(regexes, i + 1, path, k) for k in range(j, len(path) + 1))
    return j < len(path) and bool(regex.fullmatch(path[j])) and _match_from(regexes, i + 1, path, j + 1)


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'")
_PATTERN_PIECE = re.compile(r"'(?:[^'\\]|\\.)*'|[^.]+")


def _part_regex(part: str) -> re.Pattern[str]:
    if part.startswith("'"):  # quoted: every character stands for itself
        return re.compile(re.escape(split_path(part)[0]))
    return re.compile(".*".join(re.escape(piece) for piece in part.split("*")), re.DOTALL)
