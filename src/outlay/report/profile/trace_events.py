"""What a trace of JAX's profiler says of the instructions of one program."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax

from outlay.core.error_types import ProfileError

_SHOWN = 4
_PYTHON = "python"
"""The line of Python's own calls, thousands of them, in traces that were told to hold them."""


@dataclass(frozen=True)
class TraceEvent:
    """One run of an instruction.

    Attributes:
        name: of the instruction.
        track: where it ran: the plane and the line of the trace, such as a GPU and a stream of it.
        begin: seconds from the first event of the program.
        seconds: how long it took, waiting for other devices included.
    """

    name: str
    track: tuple[str, str]
    begin: float
    seconds: float


def read_trace(path: Path, program: str) -> list[TraceEvent]:
    """The events of a program in a trace, in the order of their begin.

    Args:
        path: an `.xplane.pb` file, or a folder that `jax.profiler` wrote to; of several traces in it the newest.
        program: the name of the compiled program, such as `jit_step`.

    Raises:
        ProfileError: there is no trace, or no event of this program in it.
    """
    file = _newest(path)
    try:
        with warnings.catch_warnings():
            # Python 3.13 warns of a type inside of JAX's reader, and where warnings are errors that ends the process.
            warnings.simplefilter("ignore", DeprecationWarning)
            events = list(_events(jax.profiler.ProfileData.from_file(str(file))))
    except (OSError, RuntimeError, ValueError) as error:
        fix = "a file that jax.profiler wrote"
        raise ProfileError(f"{file} cannot be read as a trace: {error}\n  fix: {fix}") from error
    programs = collections.Counter(name for name, _ in events)
    if not events:
        raise ProfileError(
            f"{file} holds no event of any compiled program: nothing ran while it was taken, or it was over too soon"
            "\n  fix: let the profiler run over whole steps, and wait for their results: jax.block_until_ready(state)"
        )
    if program not in programs:
        listed = ", ".join(f"{name} ({count} events)" for name, count in programs.most_common(_SHOWN))
        raise ProfileError(
            f"{file} is a trace of another program: it holds no event of {program}, but of {listed}"
            "\n  fix: profile this recipe with this layout, or explain the one that was traced"
        )
    mine = [event for name, event in events if name == program]
    first = min(event.begin for event in mine)
    shifted = [TraceEvent(one.name, one.track, one.begin - first, one.seconds) for one in mine]
    return sorted(shifted, key=lambda event: event.begin)


def _newest(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ProfileError(
            f"there is no trace in {path}\n  fix: a file that ends in .xplane.pb, or the folder given to jax.profiler"
        )
    return files[-1]


def _events(data: jax.profiler.ProfileData) -> Iterator[tuple[str, TraceEvent]]:
    """(program, event) of all that ran an instruction of a compiled program."""
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events if line.name != _PYTHON else ():
                stats = dict(event.stats)
                if "hlo_op" in stats and "hlo_module" in stats:
                    name, times = str(stats["hlo_op"]), (event.start_ns * 1e-9, event.duration_ns * 1e-9)
                    yield str(stats["hlo_module"]), TraceEvent(name, (plane.name, line.name), *times)
