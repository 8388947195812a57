"""How a command ends: its exit code, and on stderr an error without a traceback, or a bug report."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from outlay.cli import interrupt
from outlay.core.error_types import OutlayError
from outlay.core.user_code import users_traceback
from outlay.jobs.exit_codes import is_echo
from outlay.recipes.find import EXTRAS

CHECK_FAILED = 1
WRONG_USE = 2
UNKNOWN = 3
OWN_FAULT = 70  # EX_SOFTWARE of sysexits.h: 1 must mean that a check failed, and nothing else (decision 16)
EXIT_CODES: Mapping[int, str] = {
    0: "well",
    CHECK_FAILED: "a check failed",
    WRONG_USE: "an error in what was asked, in your files or in the environment",
    UNKNOWN: "a check that cannot tell",
    OWN_FAULT: "a bug in Outlay",
    interrupt.STOPPED: "stopped by Ctrl-C",
}
"""One meaning for each exit code, in all commands; any other is that of the process that failed first, or 128 and the
number of the signal that ended it."""

# Names of optional packages as they are imported, and the extra that installs each.
_EXTRA = {
    **dict.fromkeys(("flax", "grain", "matplotlib", "orbax"), "train"),
    "tensorstore": "zarr",
    **EXTRAS,
}
# Errors of XLA that come from the machine.
_MACHINE = ("RESOURCE_EXHAUSTED", "Out of memory", "Unable to initialize backend")


@dataclass(frozen=True)
class Failure:
    """Why a command failed.

    Attributes:
        exit_code: what it ends with.
        kind: the class of the error.
        message: what is wrong.
        text: what to print; the message, if None.
    """

    exit_code: int
    kind: str
    message: str
    text: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints in place of facts."""
        return {"error": {"kind": self.kind, "message": self.message, "exit_code": self.exit_code}}


def failure_of(error: BaseException, words: Sequence[str] = ()) -> Failure:
    """Return exit code and message for an error that ended a command."""
    kind = type(error).__name__
    # First of all: imports and JAX may turn a Ctrl-C into any other error.
    if isinstance(error, KeyboardInterrupt) or interrupt.has_come():
        message = (str(error) if isinstance(error, KeyboardInterrupt) else "") or "stopped"
        return Failure(interrupt.STOPPED, "KeyboardInterrupt", message, text=message)
    if isinstance(error, OutlayError):
        return Failure(WRONG_USE, kind, in_options(error.details if "--traceback" in words else str(error)))
    if hasattr(error, "show") and hasattr(error, "format_message"):  # of typer: an option or an argument
        usage: Any = error
        usage.show(shown := io.StringIO())
        return Failure(WRONG_USE, kind, usage.format_message(), text=shown.getvalue().rstrip("\n"))
    if isinstance(error, typer.Abort):
        return Failure(WRONG_USE, kind, "stdin ended before the input that was asked for")
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    missing = next((missing for missing in (name.partition(".")[0], name) if missing in _EXTRA), None)
    if missing is not None:
        fix = f"pip install 'outlay[{_EXTRA[missing]}]'"
        return Failure(WRONG_USE, kind, f"this needs {missing}, which is not installed\n  fix: {fix}")
    if trace := users_traceback(error, _users_files()):
        return Failure(WRONG_USE, kind, f"your own code raised an error\n{trace}")
    if environment := _of_environment(error):
        return Failure(WRONG_USE, kind, f"{environment}\n  (outlay --traceback shows where)")
    return Failure(OWN_FAULT, kind, _report(error, words))


def _of_environment(error: BaseException) -> str | None:
    """Return the message for an error that comes from the machine or the settings; None for others."""
    if isinstance(error, OSError) and error.errno is not None:
        of = f"{error.filename}: " if error.filename is not None else ""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"{of}{os.strerror(error.errno)}" + ("\n  fix: make room there, and run it again" if is_full else "")
    if isinstance(error, MemoryError):
        return f"this machine has no memory left{f': {error}' if str(error) else ''}"
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _MACHINE):
        return f"{error}\n  fix: outlay doctor --message says what such a message means"
    if isinstance(error, RuntimeError) and is_echo(str(error)):
        return f"another process of the job has gone, or cannot be reached: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and frames and frames[-1].filename.endswith("jax/_src/config.py"):
        return f"JAX does not start: {error}\n  fix: correct or unset that variable, in capital letters"
    return None


def _report(error: BaseException, words: Sequence[str]) -> str:
    """Return what to send with the report of a bug; the traceback goes to a file."""
    import shlex
    import tempfile  # with all that it imports, the help would take longer

    from outlay.core.runtime_flags import versions

    trace, command = "".join(traceback.format_exception(error)), shlex.join(["outlay", *words])
    packages = {**versions(("outlay", "jax", "jaxlib")), "Python": sys.version.split()[0]}
    installed = ", ".join(f"{name} {version}" for name, version in packages.items())
    try:
        # The traceback may quote what UTF-8 cannot encode, such as the lone surrogates of an undecodable file name.
        with tempfile.NamedTemporaryFile(
            "w", prefix="outlay-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"{command}\n{installed}, {sys.platform}\n\n{trace}")
        where = f"the traceback and all of this is in {file.name}"
    except OSError:
        where = "outlay --traceback prints the traceback"
    summary = "".join(traceback.format_exception_only(error)).strip()
    return (
        f"this is a bug in Outlay: {summary}\n  command: {command}\n  versions: {installed}\n  {where}\n"
        "  please report it, with these lines, to Outlay's maintainers; nothing is known to be wrong with your command"
    )


def _users_files() -> frozenset[str]:
    importer = sys.modules.get("outlay.recipes.recipe_file")
    return frozenset(importer.LOADED) if importer else frozenset()


_AXES = r"((?:\w+=-?\d+(?:, )?)+)"

_EDITS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"outlay\.simulate\((\d+)\)(?: before anything else uses JAX)?", lambda match: f"--devices {match[1]}"),
    (
        rf"outlay\.mesh\({_AXES}devices=jax\.devices\(\)\[:(\d+)\]\)",
        lambda match: f"--devices {match[2]} --mesh {_text_of(match[1])}",
    ),
    (rf"outlay\.mesh\({_AXES}\)", lambda match: f"--mesh {_text_of(match[1])}"),
    (r"\b(steps|devices|processes|stride|patience)=(\d+)\b", lambda match: f"--{match[1]} {match[2]}"),
    (r"\b(mode|against|target|layout)=[\"']([^\"']+)[\"']", lambda match: f"--{match[1]} {match[2]}"),
)
"""What a fix names in Python, and the options for it."""


def in_options(message: str) -> str:
    r"""Return a message whose fixes name options where they name the arguments of Python's functions.

    Fixes of files, such as a rule or a line of a model, stay what is written there.

    >>> print(in_options("data=4, but there is 1 device\n  fix: outlay.mesh(data=1)\n  or outlay.simulate(4)"))
    data=4, but there is 1 device
      fix: --devices 4
      or --mesh data=1
    """
    lines, fixes = message.split("\n"), []
    for number, line in enumerate(lines):
        if line.lstrip().startswith("fix: "):
            fixes = [number]
        elif fixes and fixes[-1] == number - 1 and line.lstrip().startswith("or "):
            fixes.append(number)
        else:
            continue
        for pattern, edit in _EDITS:
            line = re.sub(pattern, edit, line)
        lines[number] = line
    return "\n".join(_simulating_first(lines, fixes))


def _text_of(axes: str) -> str:
    return axes.rstrip(", ").replace(", ", ",")


def _simulating_first(lines: list[str], fixes: list[int]) -> list[str]:
    """Let the last fixes begin with the number of devices."""
    begins = [lines[number].lstrip().partition(" ")[2] for number in fixes]
    first = next((place for place, text in enumerate(begins) if "--devices" in text and "--mesh" not in text), 0)
    if first:
        begins.insert(0, begins.pop(first))
        heads = ["fix: ", *["or "] * (len(begins) - 1)]
        for number, head, text in zip(fixes, heads, begins, strict=True):
            lines[number] = f"  {head}{text}"
    return lines
