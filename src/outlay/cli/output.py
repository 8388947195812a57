"""Print facts on stdout, with `--json` as one document and nothing else; everything else goes to stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

from outlay.core.terminal_text import visible

if TYPE_CHECKING:
    from outlay.render.report import Report

_PIPED_WIDTH = 120  # as wide as `str()` of a report: a pipe and a log get the same text
ANSWERS = "OUTLAY_ANSWERS"
"""The variable that names the folder in which a launcher looks for the JSON document of its job."""


class PipeTolerantStream:
    """A text stream that outlives its reader: what can no longer be written is dropped, and the work continues.

    Args:
        stream: the stream; None where the program was started without.

    Attributes:
        stream: the stream that raises.
        failure: what went wrong first; None if nothing did.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.failure = OSError(errno.EBADF, os.strerror(errno.EBADF)) if stream is None else None
        self.stream = open(os.devnull, "w", encoding="utf-8") if stream is None else stream  # noqa: SIM115  # for good

    def write(self, text: str) -> int:
        """Write text, or drop it once a write has failed."""
        try:
            return self.stream.write(text)
        except UnicodeEncodeError as error:  # a terminal or a file that cannot show all letters
            return self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            self.stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self.failure = self.failure or error
        with contextlib.suppress(OSError, ValueError):  # what is held back would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def survive_closed_pipes() -> None:
    """Make stdout and stderr of this process outlive their readers."""
    sys.stdout = cast(TextIO, PipeTolerantStream(sys.stdout))
    sys.stderr = cast(TextIO, PipeTolerantStream(sys.stderr))


def raise_when_unread() -> None:
    """Make stdout and stderr raise when nobody reads them any more: a launcher has to know."""
    sys.stdout, sys.stderr = (getattr(stream, "stream", stream) for stream in (sys.stdout, sys.stderr))


class _Answer:
    """What the running command prints as its facts."""

    def __init__(self) -> None:
        self.stream: TextIO | None = None
        self.as_json = False
        self.is_printed = False
        self.goes_on = False  # even if nobody reads


_answer = _Answer()


@contextlib.contextmanager
def command_output(*, as_json: bool) -> Iterator[None]:
    """Collect the answer of a command; with `as_json`, everything else that Python prints to stdout goes to stderr.

    Args:
        as_json: whether the command was asked for JSON.
    """
    global _answer
    before, _answer = _answer, _Answer()
    _answer.stream, _answer.as_json = sys.stdout, as_json
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            yield
    finally:
        _answer = before


def finish(code: int, *, closed_pipe: int, unwritten: int) -> int:
    """Return the exit code of a command, after writing everything that can be written.

    Args:
        code: its exit code if nothing goes wrong.
        closed_pipe: its exit code if the reader has gone.
        unwritten: its exit code if something could not be written.
    """
    failure = _failure()
    if failure is None or code or _answer.goes_on:
        return code
    if failure.errno == errno.EPIPE:
        return closed_pipe
    say(f"error: stdout cannot be written: {failure.strerror}", err=True)
    return unwritten


def warn_unread(instead: str) -> None:
    """Print a note on stderr if stdout cannot be written any more; the work continues.

    Args:
        instead: what continues all the same.
    """
    failure = _failure()
    if failure is not None:
        say(f"stdout cannot be written ({failure.strerror}): {instead}", err=True)
    if failure is not None and failure.errno == errno.EPIPE:
        _answer.goes_on = True


def _failure() -> OSError | None:
    """Return the first error of writing to stdout; None if all was written so far."""
    if _answer.stream is None:
        return None
    _answer.stream.flush()
    return getattr(_answer.stream, "failure", None)


def say(text: str, *, err: bool = False) -> None:
    """Print lines, with control characters escaped."""
    typer.echo(visible(text), err=err)


def print_picture(renderable: Any) -> None:
    """Print something that rich can draw: in colour and as wide as the terminal, or as plain text into a pipe."""
    from rich.console import Console

    from outlay.core.terminal_text import Visible, to_text

    if not sys.stdout.isatty():
        typer.echo(to_text(renderable, width=_PIPED_WIDTH))
        return
    plain = "NO_COLOR" in os.environ  # which rich takes to allow bold
    width = max(_LEAST_WIDTH, Console().width)
    console = Console(highlight=False, width=width, color_system=None if plain else "auto", soft_wrap=False)
    console.print(Visible(renderable))


_LEAST_WIDTH = 60
"""The least columns for a picture: on a narrower terminal lines are wrapped, and no column is lost."""


def print_json(facts: Any) -> None:
    """Print facts as one JSON document; in a process of a job, the launcher prints it."""
    text = json.dumps(facts, indent=1)
    _answer.is_printed = True
    folder = os.environ.get(ANSWERS)
    if folder and _answer.as_json:
        from outlay.jobs import process_info

        restart = os.environ.get(process_info.RESTART, "0")
        Path(folder, f"{int(restart):04}.json").write_text(text, encoding="utf-8")
    else:
        typer.echo(text, file=_answer.stream)


def print_facts(facts: Any, *, as_json: bool, **more: Any) -> None:
    """Print what a command found: with `--json` its `to_dict()` and more, else a picture of it, or its text."""
    if as_json:
        print_json({**facts.to_dict(), **more})
    elif hasattr(facts, "__rich__") or hasattr(facts, "__rich_console__"):
        print_picture(facts)
    else:
        say(str(facts))


def print_facts_or_brief(
    facts: Report, brief: Callable[[], Any], *, as_json: bool, print_all: bool, **more: Any
) -> None:
    """Print what a command found as `print_facts` does, or of what is too long for a terminal what matters most.

    Args:
        facts: all of it.
        brief: makes what is printed instead of more than `MOST_LINES` lines.
        as_json: whether JSON was asked for.
        print_all: whether all of it was asked for.
        **more: further entries of the JSON document.
    """
    if not as_json and not print_all:
        from outlay.render.text import is_longer

        width = max(_LEAST_WIDTH, _console_width()) if sys.stdout.isatty() else _PIPED_WIDTH
        if is_longer(facts._page(), MOST_LINES, width):
            facts = brief()
    print_facts(facts, as_json=as_json, **more)


MOST_LINES = 60
"""The lines of an answer up to which a terminal shows all of it."""


def _console_width() -> int:
    from rich.console import Console

    return Console().width


def print_answer(folder: Path) -> None:
    """Print the JSON document of a job's last start, or that it ended without one."""
    documents = sorted(folder.glob("*.json"))
    text = documents[-1].read_text(encoding="utf-8") if documents else json.dumps(_NO_ANSWER, indent=1)
    _answer.is_printed = True
    typer.echo(text, file=_answer.stream)


_NO_ANSWER = {"error": {"kind": "LaunchError", "message": "the job ended without an answer; stderr says why"}}


def print_failure(facts: Mapping[str, Any]) -> None:
    """Print why there are no facts, if JSON was asked for and no facts have been printed."""
    if _answer.as_json and not _answer.is_printed:
        print_json(facts)


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Raise OutputError if a file that a command writes at its end would replace one that Outlay did not make.

    Args:
        paths: the files; None for one that was not asked for.
        force: allow any file to be replaced.

    Raises:
        OutputError: it would, or cannot be written.
    """
    from outlay.core.output_file import check_writable

    for path in paths:
        if path is not None:
            check_writable(path, force=force)


def write_trace(path: Path | None, trace: Callable[[], Mapping[str, Any]], *, force: bool) -> None:
    """Write a trace to the file of `--trace`, if one is asked for, and print its name.

    Args:
        path: the file.
        trace: makes the trace.
        force: replace any file.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written.
    """
    if path is not None:
        marked = {"otherData": {"generator": "outlay"}, **trace()}
        _write(path, json.dumps(marked), "open it at https://ui.perfetto.dev", force=force)


def write_page(path: Path | None, facts: Any, *, force: bool) -> None:
    """Write the page of facts to the file of `--html`, if one is asked for, and print its name.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written.
    """
    if path is not None:
        _write(path, facts.to_html(), "open it in a browser", force=force)


def _write(path: Path, content: str, advice: str, *, force: bool) -> None:
    from outlay.core.output_file import write_output

    write_output(path, content, force=force)
    say(f"wrote {path}: {advice}", err=True)
