"""Match the arrays of a checkpoint or a file to the leaves of a state, by rules for names and by patterns."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from outlay.arrays.check_arrays import leaf_differences
from outlay.core.array_leaves import used_up
from outlay.core.error_types import CheckpointError, CheckpointWarning, Problem
from outlay.core.paths import flatten_paths, join_parts, matches, pattern_problem, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean, or_renamed
from outlay.program.program import Program
from outlay.train.checkpoint.integrity import Manifest, SavedLeaf

NameRules = Sequence[tuple[str, str | None] | tuple[str, str, tuple[int, ...]]]
"""Rules as users write them: (name in the file, path of the leaf), with the order of dims if it differs."""

_STAR = re.compile(r"\*\*|\*")


@dataclass(frozen=True)
class NameRule:
    """A parsed rule.

    Attributes:
        name: the pattern of names in the file; `*` matches a component or a part of one, `**` any text.
        path: the leaf's path, with the stars of the name in order; None skips these arrays.
        dims: the file's dim for each dim of the leaf; a repeated one is split. None for the same order.
    """

    name: str
    path: str | None
    dims: tuple[int, ...] | None = None

    def leaf_of(self, name: str) -> tuple[str | None, tuple[int, ...]] | None:
        """Return the leaf of an array with this name, and its index in the leaf's leading dims; None without a match.

        >>> NameRule("h.*.w", "layers.*.kernel").leaf_of("h.3.w"), NameRule("h.*.w", "layers.kernel").leaf_of("h.3.w")
        (('layers.3.kernel', ()), ('layers.kernel', (3,)))
        """
        texts = {"**": "(.+)", "*": "([^.]*)"}
        pattern = "".join(texts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*|\*)", self.name))
        match = re.fullmatch(pattern, name)
        if match is None:
            return None
        if self.path is None:
            return None, ()
        stars = list(match.groups())
        path = _STAR.sub(lambda _: stars.pop(0), self.path)
        if not all(star.isdecimal() for star in stars):
            return None
        return path, tuple(map(int, stars))

    @property
    def numbered(self) -> str:
        """Say what else the stars require of a name, for messages; empty if nothing."""
        if self.path is None or len(_STAR.findall(self.name)) == len(_STAR.findall(self.path)):
            return ""
        return " with numbers for the stars that the path lacks"

    def text(self) -> str:
        """Write the rule as Python.

        >>> NameRule("h.*.w", "layers.*.kernel", (1, 0)).text()
        '("h.*.w", "layers.*.kernel", (1, 0))'
        """
        path = "None" if self.path is None else f'"{self.path}"'
        return f'("{self.name}", {path}{f", {self.dims}" if self.dims else ""})'


def name_rules(rules: NameRules) -> list[NameRule]:
    """Parse rules.

    Raises:
        CheckpointError: a rule is malformed; every such rule is a problem of its own.
    """
    read, problems = [], []
    for number, rule in enumerate(rules, 1):
        if what := _fault(rule):
            fix = 'write ("model.layers.*.up.weight", "params.layers.*.up", (1, 0)), for example'
            problems.append(Problem("no rule for names", f"rule {number}: {rule!r:.80}", what, fix))
        else:
            read.append(NameRule(rule[0], rule[1], rule[2] if len(rule) == 3 else None))
    if problems:
        raise CheckpointError(f"{len(problems)} of {len(rules)} rules for names cannot be read", problems)
    return read


def _is_order(dims: object) -> bool:
    """Return whether these are all dims of an array, with repeated dims next to each other."""
    if not isinstance(dims, tuple) or not all(isinstance(dim, int) for dim in dims):
        return False
    once = [dim for dim, _ in itertools.groupby(dims)]
    return sorted(once) == list(range(len(once)))


def _fault(rule: object) -> str:
    """Say what is wrong with a rule; empty if nothing is."""
    if not isinstance(rule, tuple) or len(rule) not in (2, 3) or not isinstance(rule[0], str):
        return "a rule is (name in the file, path of the leaf) or (name, path, order of dims)"
    name, path, *dims = rule
    if dims and not _is_order(dims[0]):
        return (
            f"{dims[0]!r} is not an order of dims, such as (1, 0) for a matrix that is stored transposed, or "
            "(1, 0, 0) where its first dim is two neighbouring ones of the leaf"
        )
    if path is None:
        return "what is left out has no dims to order" if dims else ""
    if not isinstance(path, str):
        return f"{path!r} is not a path of a leaf; None leaves arrays of this name out"
    in_name, in_path = _STAR.findall(name), _STAR.findall(path)
    if in_name[: len(in_path)] != in_path or "**" in in_name[len(in_path) :]:
        return (
            f"the stars of {path!r} must be the first of {name!r}, in their order; those that it lacks are `*`, and "
            "count along its leading dims"
        )
    return ""


_MAX_LISTED = 12


def matching(patterns: str | Sequence[str], paths: Collection[str], option: str) -> tuple[list[str], list[Problem]]:
    """Select leaves by patterns.

    Args:
        patterns: one pattern, or several.
        paths: the leaves that there are.
        option: the option with the patterns, such as `only=`.

    Returns:
        The paths that a pattern matches, in their order, and one problem per pattern that matches nothing.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    problems = []
    for pattern in patterns:
        if what := pattern_problem(pattern):
            problems.append(Problem("no pattern", f"{option}{pattern!r}", what, 'write "params.**", for example'))
        elif not any(matches(pattern, path) for path in paths):
            what = f"it matches none of the {len(paths)} leaves of the state"
            parts = [split_path(path) for path in paths]
            subtrees = dict.fromkeys(f"{join_parts(each[:k])}.**" for each in parts for k in range(1, len(each)))
            fix = did_you_mean(pattern, [*subtrees, *paths])
            problems.append(Problem("matches nothing", f"{option}{pattern!r}", what, fix))
    return [path for path in paths if any(matches(pattern, path) for pattern in patterns)], problems


def selected(only: str | Sequence[str], paths: Collection[str]) -> list[str]:
    """Return the leaves that match the patterns.

    Raises:
        CheckpointError: a pattern matches nothing; every such pattern is a problem of its own.
    """
    asked, problems = matching(only, paths, "only=")
    if problems:
        raise CheckpointError(
            f"{counted(len(problems), 'pattern of only= asks', 'patterns of only= ask')} for nothing; nothing "
            "was loaded",
            problems,
        )
    return asked


def part_of(
    folder: Path,
    manifest: Manifest,
    expected: Mapping[str, jax.ShapeDtypeStruct],
    only: str | Sequence[str],
    rules: Sequence[NameRule],
) -> dict[str, str]:
    """Choose the leaves to read from a checkpoint, each with its path there.

    Args:
        folder: the checkpoint.
        manifest: the manifest of the checkpoint.
        expected: the leaves of the program's state.
        only: patterns of the requested leaves.
        rules: rules for leaves with another path in the checkpoint.

    Raises:
        CheckpointError: a pattern or rule matches nothing, or a leaf does not fit; each is a problem of its own.
    """
    asked = selected(only, expected)
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    problems: list[Problem] = []
    saved_as: dict[str, str] = {}
    used: set[NameRule] = set()
    for path in saved:
        rule, leaf = next(((rule, leaf) for rule in rules if (leaf := rule.leaf_of(path))), (None, (path, ())))
        used |= {rule} if rule else set()
        if leaf[1] or (rule and rule.dims):
            what = "it stacks or turns arrays, which is for files of other programs"
            problems.append(
                Problem("no rule for a path", rule.text() if rule else path, what, "outlay.train.read_weights")
            )
        elif rule and leaf[0] is not None and leaf[0] not in expected:
            what = f"{path} of the checkpoint would be {leaf[0]}, which the program lacks"
            problems.append(Problem("no such leaf", rule.text(), what, did_you_mean(leaf[0], expected)))
        elif leaf[0] in saved_as:
            what = f"{saved_as[leaf[0]]} and {path} of the checkpoint would both be it"
            problems.append(Problem("two for one leaf", leaf[0], what, f'add names=[("{path}", None)]'))
        elif leaf[0] in asked:
            saved_as[leaf[0]] = path
    problems += [
        Problem("unused rule", rule.text(), "no leaf of the checkpoint matches", did_you_mean(rule.name, saved))
        for rule in rules
        if rule not in used
    ]
    problems += [problem for path, there in saved_as.items() for problem in unlike(saved[there], expected[path])]
    if not saved_as and not problems:
        what = f"the checkpoint has none of the {len(asked)} requested leaves, such as {asked[0]}"
        problems.append(Problem("nothing to read", f"only={only!r}", what, did_you_mean(asked[0], saved)))
    if problems:
        raise CheckpointError(
            f"{folder} cannot be restored so: {counted(len(problems), 'problem')}; nothing was loaded", problems
        )
    others = saved.keys() - saved_as.values()
    warn_of_what_stays([path for path in asked if path not in saved_as], folder, others)
    return saved_as


def leaves_of(program: Program, state: Any) -> dict[str, jax.Array]:
    """Return the unpadded leaves of a program's state, by path.

    Raises:
        CheckpointError: the state is not the program's, or was donated.
    """
    state = program.arrays_of(state)
    problems = leaf_differences(state, program.plan.state) + used_up(state, "another one: program.init(key)")
    if problems:
        raise CheckpointError(f"into= is not a state of this program: {counted(len(problems), 'problem')}", problems)
    return dict(flatten_paths(program.crop(state))[0])


def warn_of_what_stays(stays: Sequence[str], source: object, others: Collection[str]) -> None:
    """Warn about requested leaves that stay unchanged, because the source lacks them.

    Args:
        stays: their paths.
        source: the checkpoint or the files.
        others: leaves of the source that were not requested; one of them may be the same leaf under another name.
    """
    if not stays:
        return
    lines = [f"  {path}" + (f" ({did_you_mean(path, others)})" if others else "") for path in stays[:_MAX_LISTED]]
    more = [f"  ... and {len(stays) - _MAX_LISTED} more"] if len(stays) > _MAX_LISTED else []
    fix = "  fix: only=[...] without them if that is meant, or names=[(name there, path here), ...]"
    what = f"{counted(len(stays), 'leaf is not in', 'leaves are not in')} {source}, left unchanged:"
    warnings.warn("\n".join([what, *lines, *more, fix]), CheckpointWarning, stacklevel=3)


def free(leaves: Iterable[jax.Array], still_used: Iterable[jax.Array]) -> None:
    """Free the memory of arrays that are about to be replaced, so that both are never in memory."""
    ids = {id(leaf) for leaf in still_used}
    for leaf in leaves:
        if id(leaf) not in ids and not leaf.is_deleted():
            leaf.delete()


def check_same_state(folder: Path, manifest: Manifest, expected: Mapping[str, Any]) -> None:
    """Raise if the state in a checkpoint is not that of a program.

    Args:
        folder: the checkpoint.
        manifest: the manifest of the checkpoint.
        expected: the program's leaves by path, with `shape` and `dtype`.

    Raises:
        CheckpointError: the states differ; every difference is a problem of its own.
    """
    problems = state_differences(manifest, expected)
    if problems:
        raise CheckpointError(
            f"{folder} is a checkpoint of another state than this program's: {counted(len(problems), 'difference')}; "
            "nothing was loaded",
            problems,
        )


def state_differences(manifest: Manifest, expected: Mapping[str, Any]) -> list[Problem]:
    """List the leaves that only the checkpoint or only the program has, or that differ in shape or dtype."""
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    only_expected = [path for path in expected if path not in saved]
    only_saved = [path for path in saved if path not in expected]
    problems = [
        Problem(
            "not in the checkpoint",
            path,
            f"the program has {expected[path].shape} {expected[path].dtype}",
            or_renamed("restore with a program whose state lacks it", path, only_saved),
        )
        for path in only_expected
    ]
    problems += [
        Problem(
            "not in the program",
            path,
            f"the checkpoint has {saved[path].shape} {saved[path].dtype}",
            or_renamed("restore with the program that saved it", path, only_expected),
        )
        for path in only_saved
    ]
    return problems + [p for path, leaf in saved.items() if path in expected for p in unlike(leaf, expected[path])]


def unlike(saved: SavedLeaf, expected: Any) -> list[Problem]:
    """List the differences in shape and dtype between a saved leaf and the expected leaf."""
    problems = []
    if saved.shape != expected.shape:
        what = f"shape {saved.shape} in the checkpoint, {expected.shape} in the program"
        problems.append(Problem("other shape", saved.path, what, "give the model the size that was saved"))
    if saved.dtype != str(expected.dtype):
        what = f"dtype {saved.dtype} in the checkpoint, {expected.dtype} in the program"
        problems.append(Problem("other dtype", saved.path, what, f"make the state with {saved.dtype}"))
    return problems
