"""What a pattern that matches nothing was meant to say: a typo, another syntax, letters that only look alike."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from outlay.core.error_types import Problem
from outlay.core.paths import Parts, first_part, join_parts, matches, matches_parts, pattern_parts, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.globs import MAX_GLOBS, as_dotted, globs
from outlay.layout.mirror import OPTIMIZER_ROOTS, is_optimizer
from outlay.layout.plan import LeafPlan
from outlay.layout.rule import Rule

_REGEX = re.compile(r"[\^$()|\[\]{}+?\\]|\.\*(?=[^.*])")
_LONGEST_REGEX = 200
"""Characters of a pattern that is tried as a regular expression."""
_MOST_TRIES = 10**8
"""Places in which repetitions of such an expression may be tried, in all paths together, before it is left."""


@dataclass(frozen=True)
class TreeFacts:
    """What is known of the leaves that rules are checked against.

    Attributes:
        leaves: every leaf.
        checked_roots: names of the batch and of values inside the step, which a leading wildcard does not reach.
        not_given: names that the plan was not asked for.
        nones: paths at which the tree holds `None`.
    """

    leaves: Sequence[LeafPlan]
    checked_roots: Collection[str]
    not_given: Collection[str]
    nones: Sequence[str] = field(default=())

    @property
    def paths(self) -> list[str]:
        """The paths of the leaves."""
        return [leaf.path for leaf in self.leaves]


def unused(number: int, rule: Rule, tree: TreeFacts, gradients: str) -> Problem:
    """The problem of a rule whose pattern matches no leaf, with what was probably meant.

    Args:
        number: the rule's position in the layout.
        rule: the rule.
        tree: what it is checked against.
        gradients: the name under which a step constrains its gradients.
    """
    what = f"the pattern matches none of the {counted(len(tree.leaves), 'leaf', 'leaves')}"
    absent = [path for path in tree.nones if matches(rule.pattern, path)]
    if absent:
        what += f": {absent[0]} is None, so there is no array to place"
    fix = "delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
    fix = fix if absent else _meant(rule, tree, gradients, fix)
    return Problem("unused rule", rule.named(number), what, fix)


def _meant(rule: Rule, tree: TreeFacts, gradients: str, otherwise: str) -> str:
    pattern, paths = rule.pattern, tree.paths
    hidden = [path for path in paths if matches(pattern, path) and split_path(path)[0] in tree.checked_roots]
    if hidden:
        root = split_path(hidden[0])[0]
        return f'a leading wildcard reaches the state only; write "{root}.**" for {hidden[0]}'
    anchored = [path for path in paths if matches(f"**.{pattern}", path) or matches(f"{pattern}.**", path)]
    if anchored:
        first = min(anchored, key=is_optimizer)  # a parameter is a better example than its moment
        root = split_path(first)[0]
        start = f"{root}.**" if root in tree.checked_roots else "**"
        longer = f"{start}.{pattern}" if matches(f"**.{pattern}", first) else f"{pattern}.**"
        more = f" and {len(anchored) - 1} more" if len(anchored) > 1 else ""
        return f'patterns are anchored at both ends; write "{longer}" (it matches {first}{more})'
    if rule.names(gradients):
        return f'name them in the step: grads = outlay.constrain(grads, "{gradients}"), or delete the rule'
    if (root := first_part(pattern)) in OPTIMIZER_ROOTS and root not in {split_path(path)[0] for path in paths}:
        return "this optimizer keeps no state (SGD without momentum does not): delete the rule"
    # Leading wildcards reach the state only, so nothing else may be proposed for them.
    reached = [leaf.path for leaf in tree.leaves if leaf.kind == "state" or root is not None]
    meant = _other_syntax(pattern, reached) or _look_alike(pattern, reached)
    if not meant:
        meant = did_you_mean(pattern, _likely(pattern, reached))
    return f"{meant}\nor {otherwise}"


def _likely(pattern: str, paths: Sequence[str]) -> list[str]:
    """The pattern with one part replaced by a part that exists, where that makes it match something."""
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
    """The parts of a path that stand where the pattern has a part between these two."""
    fixed = "**" not in before and "**" not in after
    if fixed and len(path) != len(before) + 1 + len(after):
        return []
    places = [len(before)] if fixed else range(len(path))
    return [path[k] for k in places if matches_parts(before, path[:k]) and matches_parts(after, path[k + 1 :])]


def _other_syntax(pattern: str, paths: Sequence[str]) -> str | None:
    """The pattern, if it is written as JAX or a file system writes paths, or as a regular expression."""
    dotted = as_dotted(pattern)
    if dotted and any(matches(dotted, path) for path in paths):
        return f'paths are dotted, list positions too: write "{dotted}"'
    if not _REGEX.search(pattern) or len(pattern) > _LONGEST_REGEX:
        return None
    reached = _by_regex(pattern, paths)
    if not reached:
        return "patterns are globs, not regular expressions: `*` is one part, `**` any number; " + did_you_mean(
            pattern, paths
        )
    found = globs(reached, set(paths) - set(reached))
    more = f" and {len(found) - MAX_GLOBS} more" if len(found) > MAX_GLOBS else ""
    written = ", ".join(f'"{each}"' for each in found[:MAX_GLOBS]) + more
    each = "" if len(found) == 1 else ", a rule each"
    return f"patterns are globs, not regular expressions: write {written}{each}"


def _by_regex(pattern: str, paths: Sequence[str]) -> list[str]:
    """The leaves that a pattern matches if it is read as a regular expression, or as a shell reads it."""
    chosen = re.sub(r"\{([^{}]*,[^{}]*)\}", lambda m: "(" + m[1].replace(",", "|") + ")", pattern).replace("/", r"\.")
    shell = re.sub(r"\*+", "[^.]*", chosen.replace(r"\.", ".").replace(".", r"\.")).replace("?", "[^.]")
    for regex, method in ((chosen, "fullmatch"), (shell, "fullmatch"), (chosen, "search")):
        if _backtracks(regex, paths):
            continue
        try:
            with warnings.catch_warnings():  # of what a later Python may read otherwise, which nobody wrote for Python
                warnings.simplefilter("ignore")
                compiled = re.compile(regex)
            found = [path for path in paths if getattr(compiled, method)(path)]
        except (re.error, RecursionError):
            continue
        if found:
            return [path for path in found if not is_optimizer(path)] or found
    return []


def _backtracks(regex: str, paths: Sequence[str]) -> bool:
    """Whether matching might take very long: repetitions of groups or of repetitions, or many of them in long paths."""
    if re.search(r"[)*+}?][*+{]", regex):
        return True
    num = 1 + len(re.findall(r"[*+{?]", regex))
    return sum(math.comb(len(path) + num, num) for path in paths) > _MOST_TRIES


def _look_alike(pattern: str, paths: Sequence[str]) -> str | None:
    """Letters of another alphabet, joined or apart, or without width, where the pattern has those it seems to have."""
    closest = difflib.get_close_matches(pattern, _likely(pattern, paths), n=1, cutoff=0.6)
    if not closest or (pattern.isascii() and closest[0].isascii()):
        return None
    differing = [
        (pattern[a:b], closest[0][c:d])
        for tag, a, b, c, d in difflib.SequenceMatcher(None, pattern, closest[0]).get_opcodes()
        if tag != "equal"
    ]
    if all(one.isascii() and other.isascii() for one, other in differing):
        return None
    told = "; ".join(f"it has {_spelt(one)} where the leaf has {_spelt(other)}" for one, other in differing[:3])
    return f"did you mean {closest[0]!a}? {told}"


def _spelt(text: str) -> str:
    """Letters by their code points."""
    if not text:
        return "nothing"
    return " + ".join(f"U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in text[:4])
