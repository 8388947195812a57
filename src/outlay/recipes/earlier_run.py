"""The run that is in a run folder already: whether it may be replaced or continued, and the arrangements it had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlay.core.error_types import CheckpointError
from outlay.core.quantities import counted
from outlay.devices.made import refuse_to_run
from outlay.jobs.heartbeat import beat
from outlay.program.program import Program
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.run_folder import RunFolder

_ARRANGEMENT = ("layout", "mode", "rules", "mesh", "versions")
"""What may be another each time a run is continued."""


def arrangements(earlier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How the run was arranged each time before; none for a new run."""
    return [*earlier.get("before", ()), {name: earlier.get(name) for name in _ARRANGEMENT}] if earlier else []


def refuse_before_beginning(program: Program, folder: RunFolder, *, saves: bool) -> None:
    """Raise where a run could not take its first step, while what it replaces is still there.

    Args:
        program: the recipe's program. It is compiled, which the run would do next.
        folder: the folder; nothing of it is touched.
        saves: whether the run saves checkpoints.

    Raises:
        ProgramError: the target is one that nothing runs on.
        CheckpointError: there are other things where the checkpoints are to be.
    """
    refuse_to_run(program.mesh, "a state cannot be made")
    if saves:
        CheckpointFolder(folder.checkpoints_path).own.check_owned()
    beat(None, "compiling")
    _ = program.compiled_parts  # asking for it compiles it


def refuse_other_run(folder: RunFolder, config: Mapping[str, Any], identity: Sequence[str]) -> None:
    """Raise where the run in a folder cannot be continued as this one.

    Args:
        folder: the folder.
        config: that of this run.
        identity: what must be in it as it was, or something else would follow.

    Raises:
        CheckpointError: it kept no checkpoints, or is another run; every difference is listed.
    """
    earlier = folder.earlier or {}
    if not earlier.get("checkpoint_every"):
        raise CheckpointError(
            f"the run in {folder.path} kept no checkpoints, so there is nothing to continue it from\n"
            "  fix: --force to begin it anew, with --checkpoint-every N"
        )
    other = [name for name in identity if config[name] != earlier.get(name)]
    if other:
        lines = "".join(f"\n  {name}: {earlier.get(name)} there, {config[name]} now" for name in other)
        raise CheckpointError(
            f"the run in {folder.path} is another one and cannot be continued: "
            f"{counted(len(other), 'difference')}{lines}"
            "\n  fix: another --run-folder, or the recipe and options of that run"
        )


def refuse_past_the_end(folder: RunFolder, step: int, num_steps: int) -> None:
    """Raise where a checkpoint is of a later step than the last of this run."""
    if step > num_steps:
        raise CheckpointError(
            f"{folder.checkpoints_path} has a checkpoint of step {step}, and a run of {num_steps} steps ends before it"
            f"\n  fix: {step} steps or more, or another folder"
        )
