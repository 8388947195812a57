"""What `config.json` says of a run, and whether the run in a folder can be continued as this one."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlay.core.error_types import CheckpointError
from outlay.core.input_file import read_text
from outlay.core.quantities import counted
from outlay.core.runtime_flags import versions
from outlay.recipes.prepare import Prepared
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions


def run_config(
    prepared: Prepared, options: RunOptions, of_kind: Mapping[str, Any], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config of a run.

    Args:
        prepared: the recipe with its program.
        options: how it is run.
        of_kind: what the config says of this kind of run in addition.
        earlier: the config of the run that it continues; empty for a new one.
    """
    recipe, program = prepared.recipe, prepared.program
    last = [{name: earlier.get(name) for name in _ARRANGEMENT}] if earlier else []
    return {
        "recipe": recipe.name,
        "layout": prepared.layout_name,
        "mode": program.mode,
        **({"schedule": program.schedule.name} if program.schedule is not None else {}),
        "rules": [str(rule) for rule in program.layout],
        "mesh": program.plan.mesh.to_dict(),
        "num_steps": options.steps,
        "checkpoint_every": options.checkpoint_every,
        "seed": recipe.seed,
        "record": list(recipe.record),
        "stride": recipe.stride,
        **options.config(),
        **of_kind,
        "command": _command(),
        "commit": commit_of(Path.cwd()),
        "versions": {"python": platform.python_version(), **versions(("outlay", "jax", "jaxlib"))},
        "before": [*earlier.get("before", ()), *last],
    }


_ARRANGEMENT = ("layout", "mode", "rules", "mesh", "command", "commit", "versions")
"""What may be another each time a run is continued; its config tells how it was each time before."""


def _command() -> str:
    """Return what was typed, or the script that runs; a command line may be as long as a file."""
    name = Path(sys.argv[0]).name
    return shlex.join(["outlay" if name == "__main__.py" else name, *sys.argv[1:]])[:_LONGEST_COMMAND]


_LONGEST_COMMAND = 2000
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out around a folder, read from the files of its repository; None without one.

    What was changed since that commit is not looked for.

    Args:
        folder: a folder in the working tree.

    >>> commit_of(Path("/")) is None
    True
    """
    try:
        here = folder.resolve()
        git = next((each / ".git" for each in (here, *here.parents) if (each / ".git").exists()), None)
        if git is None:
            return None
        if git.is_file():  # a working tree, or a module, of a repository elsewhere
            git = git.parent / read_text(git).strip().removeprefix("gitdir: ")
        head = read_text(git / "HEAD").strip()
        name = head.removeprefix("ref: ")
        commit = head if name == head else _branch(git, name)
    except (OSError, ValueError):
        return None
    return commit if commit and _HASH.fullmatch(commit) else None


def _branch(git: Path, name: str) -> str | None:
    """Return the commit of a branch; the repository may have packed its names into one file."""
    common = git / "commondir"
    shared = git / read_text(common).strip() if common.is_file() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return read_text(folder / name).strip()
    lines = read_text(shared / "packed-refs").splitlines() if (shared / "packed-refs").is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


_WHEN_ABSENT: Mapping[str, Any] = {"record": [], "stride": 1}
"""What an entry of the config was before configs had it."""


def check_same_run(folder: RunFolder, config: Mapping[str, Any], identity: Sequence[str]) -> None:
    """Raise if the run in a folder cannot be continued as this one.

    Args:
        folder: the folder.
        config: the config of this run.
        identity: the entries of the config that must not change.

    Raises:
        CheckpointError: it saved no checkpoints, or is another run; every difference is listed.
    """
    earlier = folder.earlier or {}
    if not earlier.get("checkpoint_every"):
        raise CheckpointError(
            f"the run in {folder.path} saved no checkpoints, so there is nothing to continue it from\n"
            "  fix: --force to start again, with --checkpoint-every N"
        )
    before = {name: earlier.get(name, _WHEN_ABSENT.get(name)) for name in identity}
    if not (config.get("examples") and before.get("examples")):  # data of the user's own class are not counted
        before.pop("examples", None)
    if other := [name for name in before if config[name] != before[name]]:
        lines = "".join(f"\n  {name}: {before[name]} there, {config[name]} now" for name in other)
        raise CheckpointError(
            f"the run in {folder.path} is another one and cannot be continued: "
            f"{counted(len(other), 'difference')}{lines}"
            "\n  fix: another --run-folder, or the recipe and options of that run"
        )


def check_steps_left(folder: RunFolder, step: int, num_steps: int) -> None:
    """Raise if a checkpoint is of a later step than the last of this run.

    Args:
        folder: the folder of the run.
        step: the step of the checkpoint.
        num_steps: the number of steps of this run.
    """
    if step > num_steps:
        raise CheckpointError(
            f"{folder.checkpoints_path} has a checkpoint of step {step}, and a run of {num_steps} steps ends before it"
            f"\n  fix: {step} steps or more, or another folder"
        )
