"""Run a recipe in several processes that this one starts: what `outlay.run(processes=...)` does."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from outlay.core.error_types import LaunchError, RecipeError
from outlay.jobs.exit_codes import INTERRUPTED
from outlay.jobs.process_info import is_launched
from outlay.recipes.find import name_of
from outlay.recipes.recipe import Recipe
from outlay.recipes.run_result import RESULT, Result


def name_for_others(recipe: Recipe | str | Callable[..., Recipe]) -> str:
    """Return the name by which processes that this one starts find a recipe.

    Raises:
        RecipeError: they cannot, or would start processes in their turn.
    """
    if is_launched():
        raise RecipeError(
            "processes= is asked for in a process of a job, each of which would start a job of its own"
            '\n  fix: call it under `if __name__ == "__main__":`; under outlay launch leave it out'
        )
    if isinstance(recipe, Recipe):
        raise RecipeError(
            f"processes of their own cannot be given the recipe {recipe.name!r}, an object of this one"
            "\n  fix: its name, 'path/to/file.py:function', or the function that makes it"
        )
    return name_of(recipe)


def run_in_processes(recipe: str, words: Sequence[str]) -> Result:
    """Run the command `outlay run` with `--processes`; return what the first of its processes returned.

    It is a process of its own that starts and watches the others: this one may have started JAX, after which it should
    not fork, and may not be in its main thread, which alone hears signals. What they print is printed here.

    Args:
        recipe: what names it on the command line.
        words: options of the command and of the recipe, `--processes` among them.

    Raises:
        LaunchError: the command has failed; what it said stands above.
        KeyboardInterrupt: somebody has interrupted this process, or the command.
    """
    with tempfile.TemporaryDirectory(prefix="outlay-result-") as folder:
        file = Path(folder, "result.pickle")
        command = [sys.executable, "-m", "outlay", "run", recipe, *words]
        process = subprocess.Popen(command, env={**os.environ, RESULT: str(file)})
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # a notebook interrupts its own process only
            process.wait()
            raise
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise LaunchError(f"the run of {recipe} in processes of its own ended with exit code {code}: see above why")
        return pickle.loads(file.read_bytes())  # safe: only what this process has started knows the folder
