"""`outlay.run`: what `outlay run` does, in this process or in several that it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from outlay.core.error_types import RecipeError
from outlay.core.option import takes_fields_of
from outlay.devices.simulated import simulate
from outlay.program.program import Program
from outlay.recipes.find import find_recipe, name_of, with_recording
from outlay.recipes.prepare import prepare_with
from outlay.recipes.program_options import ProgramOptions
from outlay.recipes.recipe import Recipe
from outlay.recipes.recipe_run import run_of
from outlay.recipes.run_result import Result
from outlay.search.candidate import words_of
from outlay.train.run_options import RunOptions


@dataclass(frozen=True)
class RunArguments(RunOptions, ProgramOptions):
    """The arguments of `outlay.run`.

    Attributes:
        recipe: the recipe, or what names one.
        options: options of the recipe.
    """

    recipe: Recipe | str | Callable[..., Recipe]
    _: KW_ONLY
    options: Mapping[str, Any] | None = None


@takes_fields_of(
    RunArguments,
    'outlay.run("digits", devices=8, layout="fsdp")',
    num_steps="steps=",
    epochs="steps=: the number of batches of all epochs",
    num_epochs="steps=: the number of batches of all epochs",
    wandb="log='wandb'",
    tensorboard="log='tensorboard'",
    mlflow="log='mlflow'",
    logger="log=",
    batch_size="options={'batch_size': ...}: what a recipe takes is in `outlay run digits --help`",
    folder="run_folder=",
    seed="options={'seed': ...}",
    num_devices="devices=",
    program="outlay.fit(program, batches, steps=100, key=jax.random.key(0))",
)
def run(arguments: RunArguments) -> Result:  # noqa: D417  # its parameters are the fields
    """Run a recipe and leave a run folder, as `outlay run` does. Progress goes to stderr.

    With `processes` this process starts that many, each of which runs the command, and uses no device itself; what they
    print is printed here. Call it under `if __name__ == "__main__":`, since they may import the file that does.

    Args:
        recipe: the recipe, or what names one on the command line, `digits` or `path/to/file.py:function`, or the
            function itself. Other processes must be able to find it.
        options: options of the recipe, such as `{"model": "tiny"}`, unless it is made already.

    Returns:
        What the run came to; with `processes`, what the first of them returned.

    Raises:
        RecipeError: there is no such recipe or layout, or what follows its last step failed.
        RunFolderError: the folder holds something else, or cannot be written to.
        LaunchError: the processes cannot be started, or one of them has failed.
        Interrupted: on Ctrl-C; what was saved so far is in the folder. With `processes` it is `KeyboardInterrupt`.

    Example:
        >>> result = outlay.run("digits", layout="fsdp", steps=2, run_folder="runs/two_steps", force=True)
        >>> result.to_dict()["num_steps"]
        2
    """
    if isinstance(arguments.recipe, Program):
        raise RecipeError(
            "outlay.run takes a recipe, and this is a program\n"
            "  fix: outlay.fit(program, batches, steps=100, key=jax.random.key(0)), or program(state, batch) for a step"
        )
    if arguments.force and arguments.resume:
        raise RecipeError(
            "with force=True the run that resume=True would continue is replaced\n  fix: give one of them"
        )
    _ = arguments.loggers  # whether there are such
    if arguments.processes is not None:
        from outlay.recipes.in_processes import name_for_others, run_in_processes  # most runs do without

        name = name_for_others(arguments.recipe)
        return run_in_processes(name, [*arguments.words(), *words_of(arguments.options or {})])
    if arguments.of_job:
        raise RecipeError(f"{', '.join(arguments.of_job)}: only with processes=\n  fix: processes=P too; P may be 1")
    if arguments.devices is not None:
        simulate(arguments.devices)
    its = run_of(prepare_with(_recipe_of(arguments), arguments), arguments)
    return its.run(its.open_folder())


def _recipe_of(arguments: RunArguments) -> Recipe:
    """Return the recipe with its options, and with what is recorded of it."""
    recipe, options = arguments.recipe, arguments.options
    if not isinstance(recipe, Recipe):
        words = words_of(options or {})
        return find_recipe(name_of(recipe), words, record=arguments.patterns, stride=arguments.stride)
    if options:
        raise RecipeError(
            f"{recipe.name!r} is made already, and takes no options\n  fix: pass the function that makes it"
        )
    return with_recording(recipe, arguments.patterns, arguments.stride)
