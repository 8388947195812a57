"""Patterns that reach exactly some leaves: what an error advises must touch nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from outlay.core.paths import Parts, join_parts, matches, pattern_problem, split_path

MAX_GLOBS = 8
"""Patterns a message shows; a tree that needs more is better served by a rule for all that is left."""


_REGEX_ONLY = re.compile(r"[\^$()|\[\]{}+?\\]")
"""What stands in regular expressions and hardly in names."""


def globs(chosen: Collection[str], others: Iterable[str]) -> list[str]:
    """Few patterns that match all chosen leaves and none of the others.

    Args:
        chosen: paths of leaves of the state.
        others: paths that no pattern may match; those among `chosen` do not count.

    >>> globs(["opt.0.mu.w", "opt.0.mu.b", "opt.0.nu.w"], ["opt.0.nu.b", "params.w"])
    ['opt.0.mu.**', 'opt.0.nu.w']
    """
    mine = {split_path(path) for path in chosen}
    found = _cover(sorted(mine), [split_path(path) for path in others if split_path(path) not in mine])
    return list(dict.fromkeys(found))


def globs_text(patterns: Sequence[str], placement: str) -> str:
    """Rules of these patterns with one placement, as they are written in Python; at most `MAX_GLOBS` of them."""
    shown = ", ".join(f'("{pattern}", {placement})' for pattern in patterns[:MAX_GLOBS])
    return shown + (f" ({len(patterns) - MAX_GLOBS} more)" if len(patterns) > MAX_GLOBS else "")


def as_dotted(pattern: str) -> str | None:
    """A pattern written as JAX prints key paths, or as a file system writes paths, as a dotted one; None of others.

    >>> as_dotted("['params']['layers'][0].up"), as_dotted("params/embed"), as_dotted("params.embed")
    ('params.layers.0.up', 'params.embed', None)
    """
    dotted = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", pattern).replace("/", ".").strip(".")
    dotted = re.sub(r"\.{2,}", ".", dotted)
    is_path = dotted not in ("", pattern) and not _REGEX_ONLY.search(dotted) and pattern_problem(dotted) is None
    return dotted if is_path else None


def as_glob(regex: str) -> str | None:
    r"""A plain regular expression over paths as a glob; None if it is no such thing.

    >>> as_glob(r"^params\..*\.kernel$"), as_glob("params..kernel")
    ('params.**.kernel', None)
    """
    text = regex.removeprefix("^").removesuffix("$").replace("\\.", "\0")
    text = re.sub(r"(\[[^\]]*\]|\\[dw])[*+]?", "*", text)
    text = re.sub(r"\.[*+]", "**", text).replace("\0", ".")
    is_glob = text != regex and not _REGEX_ONLY.search(text) and pattern_problem(text) is None
    return text if is_glob else None


def _cover(chosen: list[Parts], others: list[Parts]) -> list[str]:
    if len(chosen) == 1:
        return [join_parts(chosen[0])]
    start = _num_common(chosen)
    others = [path for path in others if path[:start] == chosen[0][:start]]
    for pattern in _templates(chosen, start):
        if not any(matches(pattern, join_parts(path)) for path in others):
            return [pattern]
    return [pattern for group in _split(chosen, start) for pattern in _cover(group, others)]


def _templates(chosen: list[Parts], start: int) -> list[str]:
    """One pattern for all of them, the plainest first: everything below, a star for each part that differs, any end."""
    head = [join_parts((part,)) for part in chosen[0][:start]]
    found = [".".join([*head, "**"])] if start else []
    end = _num_common([path[start:][::-1] for path in chosen])
    if len({len(path) for path in chosen}) == 1:
        columns = [set(column) for column in zip(*chosen, strict=True)]
        found.append(".".join(join_parts((min(column),)) if len(column) == 1 else "*" for column in columns))
    if end:
        tail = [join_parts((part,)) for part in chosen[0][-end:]]
        found.append(".".join([*head, "**", *tail]))
    return found


def _split(chosen: list[Parts], start: int) -> list[list[Parts]]:
    """Groups by one part: by names rather than by numbers, since layers are alike, and into few groups."""
    if len({len(path) for path in chosen}) > 1:
        position = start
    else:
        columns = [{path[i] for path in chosen} for i in range(len(chosen[0]))]
        differing = [i for i, column in enumerate(columns) if len(column) > 1]
        position = min(differing, key=lambda i: (all(part.isdigit() for part in columns[i]), len(columns[i])))
    groups: dict[str | None, list[Parts]] = {}
    for path in chosen:
        groups.setdefault(path[position] if position < len(path) else None, []).append(path)
    return list(groups.values())


def _num_common(paths: Sequence[Parts]) -> int:
    """How many parts all of them begin with; never the whole of one, which would leave nothing to tell them apart."""
    shortest = min(len(path) for path in paths)
    for i in range(shortest):
        if len({path[i] for path in paths}) > 1:
            return i
    return shortest - 1
