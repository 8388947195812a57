"""Patterns that errors suggest: for exactly some leaves, and for what an unused pattern probably meant."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Iterable, Sequence

from outlay.core.paths import Parts, join_parts, matches, matches_parts, pattern_parts, pattern_problem, split_path
from outlay.core.quantities import listed
from outlay.core.suggest import did_you_mean
from outlay.layout.placement import is_optimizer

MAX_GLOBS = 8
"""Patterns that a message shows; a tree that needs more is better served by a rule for everything that is left."""

_REGEX = re.compile(r"[\^$()|\[\]{}+?\\]|\.\*(?=[^.*])")
"""What makes a pattern look like a regular expression."""

_REGEX_ONLY = re.compile(r"[\^$()|\[\]{}+?\\]")
"""Characters of regular expressions that names hardly contain."""

_MAX_REGEX = 200
"""The longest pattern that is tried as a regular expression."""

_MAX_TRIES = 10**8
"""The most matches of repetitions that such an expression may try, in all paths together."""


def globs(chosen: Collection[str], others: Iterable[str]) -> list[str]:
    """Return a few patterns that match all chosen leaves and none of the others.

    Args:
        chosen: paths of leaves of the state.
        others: paths that no pattern may match, except those among `chosen`.

    >>> globs(["opt.0.mu.w", "opt.0.mu.b", "opt.0.nu.w"], ["opt.0.nu.b", "params.w"])
    ['opt.0.mu.**', 'opt.0.nu.w']
    """
    chosen_parts = {split_path(path) for path in chosen}
    patterns = _cover(
        sorted(chosen_parts), [split_path(path) for path in others if split_path(path) not in chosen_parts]
    )
    return list(dict.fromkeys(patterns))


def globs_text(patterns: Sequence[str], placement: str) -> str:
    """Write rules of these patterns with one placement, as in Python; at most `MAX_GLOBS` of them."""
    shown = ", ".join(f'("{pattern}", {placement})' for pattern in patterns[:MAX_GLOBS])
    return shown + (f" ({len(patterns) - MAX_GLOBS} more)" if len(patterns) > MAX_GLOBS else "")


def as_dotted(pattern: str) -> str | None:
    """Translate JAX's key paths and paths of file systems to a dotted pattern; None for anything else.

    >>> as_dotted("['params']['layers'][0].up"), as_dotted("params/embed"), as_dotted("params.embed")
    ('params.layers.0.up', 'params.embed', None)
    """
    dotted = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", pattern).replace("/", ".").strip(".")
    dotted = re.sub(r"\.{2,}", ".", dotted)
    is_path = dotted not in ("", pattern) and not _REGEX_ONLY.search(dotted) and pattern_problem(dotted) is None
    return dotted if is_path else None


def as_glob(regex: str) -> str | None:
    r"""Translate a plain regular expression over paths to a glob; None if that is not possible.

    >>> as_glob(r"^params\..*\.kernel$"), as_glob(".*kernel$"), as_glob("params..kernel")
    ('params.**.kernel', '**.*kernel', None)
    """
    text = regex.removeprefix("^").removesuffix("$").replace("\\.", "\0")
    text = re.sub(r"(\[[^\]]*\]|\\[dw])[*+]?", "*", text)
    text = re.sub(r"\.[*+]", "**", text).replace("\0", ".")
    text = re.sub(r"(^|\.)\*\*(?=[^.])", r"\1**.*", text)  # `**` shares no part: `.*kernel` ends a part of any path
    is_glob = text != regex and not _REGEX_ONLY.search(text) and pattern_problem(text) is None
    return text if is_glob else None


def _cover(chosen: list[Parts], others: list[Parts]) -> list[str]:
    if len(chosen) == 1:
        return [join_parts(chosen[0])]
    start = _num_common(chosen)
    others = [path for path in others if path[:start] == chosen[0][:start]]  # no template below reaches any other
    for pattern in _templates(chosen, start):
        if not any(matches(pattern, join_parts(path)) for path in others):
            return [pattern]
    return [pattern for group in _split(chosen, start) for pattern in _cover(group, others)]


def _templates(chosen: list[Parts], start: int) -> list[str]:
    """Return patterns for all of them, plainest first: all below a path, stars for differing parts, a common end."""
    head = [join_parts((part,)) for part in chosen[0][:start]]
    patterns = [".".join([*head, "**"])] if start else []
    end = _num_common([path[start:][::-1] for path in chosen])
    if len({len(path) for path in chosen}) == 1:
        columns = [set(column) for column in zip(*chosen, strict=True)]
        patterns.append(".".join(join_parts((min(column),)) if len(column) == 1 else "*" for column in columns))
    if end:
        tail = [join_parts((part,)) for part in chosen[0][-end:]]
        patterns.append(".".join([*head, "**", *tail]))
    return patterns


def _split(chosen: list[Parts], start: int) -> list[list[Parts]]:
    """Group by one part: by names before numbers, since layers are alike, and into few groups."""
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
    """Return how many parts all share at the start, never all parts of one: nothing would tell them apart."""
    shortest = min(len(path) for path in paths)
    for i in range(shortest):
        if len({path[i] for path in paths}) > 1:
            return i
    return shortest - 1


def similar_patterns(pattern: str, paths: Sequence[str]) -> str:
    """Say what a pattern without a match was probably meant to be: another syntax, or a typo."""
    return _other_syntax(pattern, paths) or did_you_mean(pattern, _with_one_part_replaced(pattern, paths))


def _with_one_part_replaced(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return the pattern with one part replaced by an existing part, where that makes it match."""
    parts = pattern_parts(pattern)
    repaired = []
    for i, part in enumerate(parts):
        if "*" in part:
            continue
        before, after = parts[:i], parts[i + 1 :]
        others = {other for path in paths for other in _between(before, split_path(path), after)}
        repaired += [".".join([*before, join_parts((other,)), *after]) for other in sorted(others)]
    return repaired or list(paths)


def _between(before: Parts, path: Parts, after: Parts) -> list[str]:
    """Return the parts of a path at the place of the pattern's part between these two."""
    fixed = "**" not in before and "**" not in after
    if fixed and len(path) != len(before) + 1 + len(after):
        return []
    positions = [len(before)] if fixed else range(len(path))
    return [path[k] for k in positions if matches_parts(before, path[:k]) and matches_parts(after, path[k + 1 :])]


def _other_syntax(pattern: str, paths: Sequence[str]) -> str | None:
    """Return the pattern if it is written in JAX's or a file system's syntax, or as a regular expression."""
    dotted = as_dotted(pattern)
    if dotted and any(matches(dotted, path) for path in paths):
        return f'paths are dotted, list positions too: write "{dotted}"'
    if not _REGEX.search(pattern) or len(pattern) > _MAX_REGEX:
        return None
    reached = _by_regex(pattern, paths)
    if not reached:
        return "patterns are globs, not regular expressions: `*` is one part, `**` any number; " + did_you_mean(
            pattern, paths
        )
    suggested = globs(reached, set(paths) - set(reached))
    written = listed([f'"{each}"' for each in suggested], MAX_GLOBS)
    each = "" if len(suggested) == 1 else ", a rule each"
    return f"patterns are globs, not regular expressions: write {written}{each}"


def _by_regex(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return the leaves that match if the pattern is read as a regular expression, or as in a shell."""
    chosen = re.sub(r"\{([^{}]*,[^{}]*)\}", lambda m: "(" + m[1].replace(",", "|") + ")", pattern).replace("/", r"\.")
    shell = re.sub(r"\*+", "[^.]*", chosen.replace(r"\.", ".").replace(".", r"\.")).replace("?", "[^.]")
    for regex, method in ((chosen, "fullmatch"), (shell, "fullmatch"), (chosen, "search")):
        if _backtracks(regex, paths):
            continue
        try:
            with warnings.catch_warnings():  # about syntax that a later Python may read otherwise
                warnings.simplefilter("ignore")
                compiled = re.compile(regex)
            reached = [path for path in paths if getattr(compiled, method)(path)]
        except (re.error, RecursionError):
            continue
        if reached:
            return [path for path in reached if not is_optimizer(path)] or reached
    return []


def _backtracks(regex: str, paths: Sequence[str]) -> bool:
    """Return whether matching might take very long: nested or many repetitions, in long paths."""
    if re.search(r"[)*+}?][*+{]", regex):
        return True
    num = 1 + len(re.findall(r"[*+{?]", regex))
    return sum(math.comb(len(path) + num, num) for path in paths) > _MAX_TRIES
