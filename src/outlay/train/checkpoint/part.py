"""A part of a state: which leaves are asked for by patterns, and what stays because its source lacks it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from outlay.arrays.misfits import differences
from outlay.core.error_types import CheckpointError, CheckpointWarning, Problem
from outlay.core.paths import flatten_paths, join_parts, matches, pattern_problem, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.program.program import Program
from outlay.train.checkpoint.differences import unlike
from outlay.train.checkpoint.manifest import Manifest
from outlay.train.checkpoint.name_rules import NameRule

_MAX_LISTED = 12


def selected(only: str | Sequence[str], paths: Collection[str]) -> list[str]:
    """The leaves that patterns ask for.

    Args:
        only: one pattern, or several.
        paths: the leaves that there are.

    Raises:
        CheckpointError: with one problem per pattern that matches nothing.
    """
    patterns = [only] if isinstance(only, str) else list(only)
    problems = []
    for pattern in patterns:
        if what := pattern_problem(pattern):
            problems.append(Problem("no pattern", f"only={pattern!r}", what, 'write "params.**", for example'))
        elif not any(matches(pattern, path) for path in paths):
            what = f"it matches none of the {len(paths)} leaves of the state"
            parts = [split_path(path) for path in paths]
            subtrees = dict.fromkeys(f"{join_parts(each[:k])}.**" for each in parts for k in range(1, len(each)))
            fix = did_you_mean(pattern, [*subtrees, *paths])
            problems.append(Problem("matches nothing", f"only={pattern!r}", what, fix))
    if problems:
        raise CheckpointError(
            f"{counted(len(problems), 'pattern of only= asks', 'patterns of only= ask')} for nothing; nothing "
            "was loaded",
            problems,
        )
    return [path for path in paths if any(matches(pattern, path) for pattern in patterns)]


def part_of(
    folder: Path,
    manifest: Manifest,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    only: str | Sequence[str],
    rules: Sequence[NameRule],
) -> dict[str, str]:
    """Which leaves to read from a checkpoint, each with its path there.

    Args:
        folder: the checkpoint.
        manifest: what it holds.
        wanted: the leaves of the program's state.
        only: patterns of those that are asked for.
        rules: for leaves that have another path in the checkpoint.

    Raises:
        CheckpointError: with one problem per pattern or rule that matches nothing, or leaf that does not fit.
    """
    asked = selected(only, wanted)
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    problems: list[Problem] = []
    found: dict[str, str] = {}
    used: set[NameRule] = set()
    for path in saved:
        rule, leaf = next(((rule, leaf) for rule in rules if (leaf := rule.leaf_of(path))), (None, (path, ())))
        used |= {rule} if rule else set()
        if leaf[1] or (rule and rule.dims):
            what = "it stacks or turns arrays, which is for files of other programs"
            problems.append(Problem("no rule for a path", rule.text() if rule else path, what, "outlay.read_weights"))
        elif rule and leaf[0] is not None and leaf[0] not in wanted:
            what = f"{path} of the checkpoint would be {leaf[0]}, which the program lacks"
            problems.append(Problem("no such leaf", rule.text(), what, did_you_mean(leaf[0], wanted)))
        elif leaf[0] in found:
            what = f"{found[leaf[0]]} and {path} of the checkpoint would both be it"
            problems.append(Problem("two for one leaf", leaf[0], what, f'add names=[("{path}", None)]'))
        elif leaf[0] in asked:
            found[leaf[0]] = path
    problems += [
        Problem("unused rule", rule.text(), "no leaf of the checkpoint matches", did_you_mean(rule.name, saved))
        for rule in rules
        if rule not in used
    ]
    problems += [problem for path, there in found.items() for problem in unlike(saved[there], wanted[path])]
    if not found and not problems:
        what = f"the checkpoint has none of the {len(asked)} leaves that are asked for, such as {asked[0]}"
        problems.append(Problem("nothing to read", f"only={only!r}", what, did_you_mean(asked[0], saved)))
    if problems:
        raise CheckpointError(
            f"{folder} cannot be restored so: {counted(len(problems), 'problem')}; nothing was loaded", problems
        )
    others = saved.keys() - found.values()
    warn_of_what_stays([path for path in asked if path not in found], folder, others)
    return found


def leaves_of(program: Program, state: Any) -> dict[str, jax.Array]:
    """The leaves of a program's state as one device has them, by path.

    Raises:
        CheckpointError: it is another state than the program's, or was used up.
    """
    problems = differences(state, program.plan.state)
    fix = "another one: program.init(key)"
    problems += [
        Problem("used up", path, "its memory was handed on (donated)", fix)
        for path, leaf in flatten_paths(state)[0]
        if isinstance(leaf, jax.Array) and leaf.is_deleted()
    ]
    if problems:
        raise CheckpointError(f"into= is no state of this program: {counted(len(problems), 'problem')}", problems)
    return dict(flatten_paths(program.crop(state))[0])


def warn_of_what_stays(stays: Sequence[str], source: object, others: Collection[str]) -> None:
    """Say which leaves were asked for and stay as they were, since their source lacks them.

    Args:
        stays: their paths.
        source: where they are not.
        others: what the source has and nobody asked for: one of them may be the same leaf by another name.
    """
    if not stays:
        return
    lines = [f"  {path}" + (f" ({did_you_mean(path, others)})" if others else "") for path in stays[:_MAX_LISTED]]
    more = [f"  ... and {len(stays) - _MAX_LISTED} more"] if len(stays) > _MAX_LISTED else []
    fix = "  fix: only=[...] without them if that is meant, or names=[(name there, path here), ...]"
    what = f"{counted(len(stays), 'leaf is not in', 'leaves are not in')} {source}, left unchanged:"
    warnings.warn("\n".join([what, *lines, *more, fix]), CheckpointWarning, stacklevel=3)


def free(leaves: Iterable[jax.Array], kept: Iterable[jax.Array]) -> None:
    """Give back the memory of arrays that others take the place of, so that never both are there."""
    ids = {id(leaf) for leaf in kept}
    for leaf in leaves:
        if id(leaf) not in ids and not leaf.is_deleted():
            leaf.delete()
