"""The processes of a job as their launcher sees them: it starts them, reads their pipes, and ends them."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

from outlay.jobs import proc_files
from outlay.jobs.job_folder import Flag, JobFolder
from outlay.launcher.merged_output import MergedOutput

_PATIENCE = 0.8  # seconds between asking a process to end and ending it
_IS_LINUX = sys.platform == "linux"


class Process:
    """A running command, with pipes from its stdout and stderr.

    Attributes:
        number: its number in the job.
        popen: the process itself, leader of its session and process group.
        exit_code: None while it runs; negative where a signal ended it.
        ended: when it was first seen to have ended, in seconds since the epoch.
    """

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.exit_code: int | None = None
        self.ended: float | None = None
        launcher = os.getpid()

        def end_with_launcher() -> None:
            proc_files.die_with_parent()
            if _IS_LINUX and os.getppid() != launcher:  # it ended before the line above
                os._exit(1)

        self.popen = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the launcher alone, and one signal reaches all that this started
            preexec_fn=end_with_launcher,  # the launcher has one thread, so running Python here is safe
        )

    def look(self) -> bool:
        """Return whether it still runs; if not, end what it has left running."""
        if self.exit_code is None:
            self.exit_code = self.popen.poll()
            if self.exit_code is not None:
                self.ended = time.time()
                # Its group may still hold its devices and ports, which a restart needs.
                self.signal(signal.SIGKILL)
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone; macOS calls zombies not permitted
            os.killpg(self.popen.pid, number)


@contextlib.contextmanager
def killing_leftovers(mark: str) -> Iterator[None]:
    """Kill all processes of a job when this block ends, or when this process is killed. Linux only.

    A signal to a process group does not reach what a process has started in a session of its own, and only another
    process can act after a SIGKILL.

    Args:
        mark: the mark of the job.
    """
    if not _IS_LINUX:
        yield
        return
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", proc_files.__file__, mark],
        stdin=subprocess.PIPE,  # ends with this process
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # so that a signal to the launcher's group does not end it too
    )
    try:
        yield
    finally:
        proc_files.end_marked(mark)
        guard.kill()
        guard.communicate()


def end_all(processes: Iterable[Process], folder: JobFolder) -> None:
    """End all processes in about a second: ask with SIGTERM, then SIGKILL.

    Args:
        processes: the processes of a job.
        folder: the folder of the job, in which this marks that they are to end, and not to save.
    """
    running = [process for process in processes if process.look()]
    if running:
        with contextlib.suppress(OSError):  # a full disk: they may save first
            folder.set(Flag.ENDING)
    for process in running:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process takes note of SIGTERM only when it goes on
    deadline = time.monotonic() + _PATIENCE
    while any(process.look() for process in running) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in running:
        if process.look():
            process.signal(signal.SIGKILL)
            process.popen.wait()
            process.look()


_PIECE = 1 << 16
_LAST_WORDS = 0.5  # seconds


class Pipes:
    """Reads the pipes of all processes, without waiting for any one of them, into the merged output.

    Attributes:
        last_line: by process, when it last wrote something (`time.monotonic`).
    """

    def __init__(self, processes: Iterable[Process], output: MergedOutput) -> None:
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._pipes: list[IO[bytes]] = []
        self.last_line: dict[int, float] = {}
        for process in processes:
            for stream in ("stdout", "stderr"):
                pipe = getattr(process.popen, stream)
                self._pipes.append(pipe)
                self._selector.register(pipe, selectors.EVENT_READ, (process.number, stream, Lines()))

    def wait(self, seconds: float) -> bool:
        """Wait until something can be read, up to a number of seconds."""
        if self._selector.get_map():
            return bool(self._selector.select(seconds))
        time.sleep(seconds)
        return False

    def read(self) -> None:
        """Read what is there now."""
        for key, _ in self._selector.select(0):
            process, stream, lines = key.data
            piece = os.read(key.fd, _PIECE)
            self._output.add(process, stream, lines.add(piece) if piece else lines.finish())
            self.last_line[process] = time.monotonic()
            if not piece:
                self._output.end(process, stream)
                self._selector.unregister(key.fileobj)

    def read_rest(self) -> None:
        """Read what ended processes have left, and close the pipes; a second call changes nothing."""
        if not self._pipes:
            return
        deadline = time.monotonic() + _LAST_WORDS
        while self._selector.get_map() and time.monotonic() < deadline:
            self.wait(0.05)
            self.read()
        for key in list(self._selector.get_map().values()):
            process, stream, lines = key.data
            self._output.add(process, stream, lines.finish())
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []


LONGEST = 1 << 20
"""Bytes of a line that are held until its end comes; a longer line is shown in pieces."""

_ENDS = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)


class Lines:
    """Splits what comes from a pipe into lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> list[str]:
        """Add what came; return the lines that are complete now, without their ends.

        A carriage return ends a line too: progress bars write one instead of a newline.
        """
        begins_an_end = bool(self._begun) and self._begun[-1].endswith(b"\r")
        if not begins_an_end and b"\n" not in piece and b"\r" not in piece:  # what came before is not looked at again
            return self._buffer_piece(piece)
        *parts, rest = _ENDS.split(b"".join(self._begun) + piece)
        self._begun, self._size = [], 0
        pairs = zip(parts[::2], parts[1::2], strict=True)
        whole = [line.decode(errors="replace") for line, end in pairs if line or end != b"\r"]
        return whole + self._buffer_piece(rest)

    def finish(self) -> list[str]:
        """Return what is left when the pipe has closed."""
        rest, self._begun, self._size = b"".join(self._begun), [], 0
        return [rest.decode(errors="replace").rstrip("\r")] if rest else []

    def _buffer_piece(self, piece: bytes) -> list[str]:
        if piece:
            self._begun.append(piece)
            self._size += len(piece)
        return self.finish() if self._size >= LONGEST else []
