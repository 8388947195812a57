"""Give an answer again, without starting JAX, if the same was asked and nothing that it depends on has changed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer

from outlay.cli import output
from outlay.cli.options import ProgramOptions
from outlay.core.disk_cache import DiskCache, cache_folder, key_of
from outlay.core.used_files import UsedFiles, are_unchanged
from outlay.recipes.plugins import RECIPES

# What shells change from one command to the next.
_OF_SHELLS = ("_", "OLDPWD", "SHLVL")
_FORM = 1  # of what is stored, and a part of the key: answers of another form are not looked at
_NOTE = "answered from the cache: nothing that this depends on has changed; --no-cache computes it anew"


class Question:
    """What a command is asked, in which circumstances; its answer is kept together with the state of all files it used.

    Only questions about absent hardware and Outlay's own recipes are kept: a user's recipe may depend on anything.

    Args:
        recipe: what the user typed for it.
        options: of the command.
        words: the recipe's own options.
        ask: whether the answer may be kept and given again.
    """

    def __init__(self, recipe: str, options: ProgramOptions, words: Sequence[str], *, ask: bool) -> None:
        self._cache = None
        is_known = recipe in RECIPES and not any(word.startswith("--data") for word in words)
        # Options of the process may name files that only the compiler reads, where no audit hook sees them.
        flags = os.environ.get("XLA_FLAGS", "") + os.environ.get("LIBTPU_INIT_ARGS", "")
        is_first = "jax" not in sys.modules and output.ANSWERS not in os.environ  # in a process that did nothing else
        folder = _working_folder()
        if ask and is_known and is_first and options.target and "/" not in flags and folder:
            self._cache = DiskCache(cache_folder().with_name("answers"))
            self._key = _key(folder)
            of_jax = os.environ.get("JAX_COMPILATION_CACHE_DIR")
            self._used = UsedFiles(but=[str(cache_folder().parent), *([of_jax] if of_jax else [])])
            self._warnings: list[str] = []
            self._hear_warnings()

    def answer_again(self) -> None:
        """Print the answer and end the command with its exit code, if the answer is known.

        Raises:
            typer.Exit: it is.
        """
        known = self._cache.load(self._key) if self._cache else None
        try:
            if not known or not are_unchanged(known["files"]):
                return
            printed, messages, code = str(known["printed"]), str(known["messages"]), int(known["code"])
        except (KeyError, TypeError, ValueError, AttributeError):  # of another version, or somebody has changed it
            return
        output.print_again(printed)
        typer.echo(messages, err=True, nl=False)
        output.say(_NOTE, err=True)
        raise typer.Exit(code)

    def keep(self, tell: Callable[[], int]) -> None:
        """Keep an answer.

        Args:
            tell: prints it, as a later command is to print it, and returns the exit code.
        """
        if self._cache is None:
            return
        with output.recording() as (printed, messages):
            code = tell()
        from outlay.devices.hardware import calibrated_file, user_file

        # Files of the user's own count if there are none, too: there may be some later.
        files = self._used.states([str(user_file()), str(calibrated_file())])
        if files is not None:
            answer = {
                "printed": printed.getvalue(),
                "messages": "".join([*self._warnings, messages.getvalue()]),
                "code": code,
            }
            self._cache.store(self._key, {"files": files, **answer})

    def _hear_warnings(self) -> None:
        show = warnings.showwarning

        def heard(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            self._warnings.append(warnings.formatwarning(message, category, filename, lineno, line))
            show(message, category, filename, lineno, file, line)

        warnings.showwarning = heard


def _working_folder() -> str | None:
    """Return the working folder; None if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _key(folder: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_SHELLS}
    streams = [stream.isatty() for stream in (sys.stdout, sys.stderr)]
    return key_of(
        _FORM,
        sys.argv[1:],
        folder,
        sorted(environment.items()),
        streams,
        tuple(shutil.get_terminal_size()),
        (sys.executable, sys.version, sys.flags, sys.path),
        (platform.node(), os.cpu_count()),
    )
