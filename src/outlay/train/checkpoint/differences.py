"""Is a checkpoint one of this program: paths, shapes, dtypes, compared before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlay.core.error_types import CheckpointError, Problem
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.train.checkpoint.manifest import Manifest, SavedLeaf


def refuse_other_state(folder: Path, manifest: Manifest, wanted: Mapping[str, Any]) -> None:
    """Raise when a checkpoint does not hold the state that a program asks for.

    Args:
        folder: the checkpoint.
        manifest: what it holds.
        wanted: what the program asks for, by path, with `shape` and `dtype`.

    Raises:
        CheckpointError: with one problem per difference.
    """
    problems = state_differences(manifest, wanted)
    if problems:
        raise CheckpointError(
            f"{folder} is a checkpoint of another state than this program's: {counted(len(problems), 'difference')}; "
            "nothing was loaded",
            problems,
        )


def state_differences(manifest: Manifest, wanted: Mapping[str, Any]) -> list[Problem]:
    """Every leaf that only the checkpoint or only the program has, or that has another shape or dtype."""
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    only_wanted = [path for path in wanted if path not in saved]
    only_saved = [path for path in saved if path not in wanted]
    problems = [
        Problem(
            "not in the checkpoint",
            path,
            f"the program has {wanted[path].shape} {wanted[path].dtype}",
            _fix("restore with a program whose state lacks it", path, only_saved),
        )
        for path in only_wanted
    ]
    problems += [
        Problem(
            "not in the program",
            path,
            f"the checkpoint has {saved[path].shape} {saved[path].dtype}",
            _fix("restore with the program that saved it", path, only_wanted),
        )
        for path in only_saved
    ]
    return problems + [p for path, leaf in saved.items() if path in wanted for p in unlike(leaf, wanted[path])]


def _fix(edit: str, path: str, others: list[str]) -> str:
    """The edit; where leaves of the other side have no partner either, one may just have been renamed."""
    return f"{edit}; {did_you_mean(path, others)}" if others else edit


def unlike(saved: SavedLeaf, wanted: Any) -> list[Problem]:
    """What the shape and the dtype of a saved leaf have against the leaf that is asked for."""
    problems = []
    if saved.shape != wanted.shape:
        what = f"shape {saved.shape} in the checkpoint, {wanted.shape} in the program"
        problems.append(Problem("other shape", saved.path, what, "give the model the size that was saved"))
    if saved.dtype != str(wanted.dtype):
        what = f"dtype {saved.dtype} in the checkpoint, {wanted.dtype} in the program"
        problems.append(Problem("other dtype", saved.path, what, f"make the state with {saved.dtype}"))
    return problems
