"""Read the events of one program from a trace of JAX's profiler."""

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
"""The trace line with Python's own calls; there can be thousands of them."""


@dataclass(frozen=True)
class TraceEvent:
    """One execution of an HLO instruction.

    Attributes:
        name: the instruction.
        track: the plane and the line of the trace, such as a GPU and one of its streams.
        begin: seconds since the first event of the program.
        seconds: the duration, including waiting for other devices.
    """

    name: str
    track: tuple[str, str]
    begin: float
    seconds: float


def read_trace(path: Path, program: str) -> list[TraceEvent]:
    """Read the events of a program from a trace, ordered by begin.

    Args:
        path: an `.xplane.pb` file, or a folder that `jax.profiler` wrote to; the newest trace in it is read.
        program: the name of the compiled program, such as `jit_step`.

    Raises:
        ProfileError: there is no trace, or it has no event of this program.
    """
    file = _newest(path)
    try:
        with warnings.catch_warnings():
            # Python 3.13 warns about a type inside JAX's reader; where warnings are errors, that would end the process.
            warnings.simplefilter("ignore", DeprecationWarning)
            events = list(_events(jax.profiler.ProfileData.from_file(str(file))))
    except (OSError, RuntimeError, ValueError) as error:
        fix = "pass a file that jax.profiler wrote"
        raise ProfileError(f"{file} cannot be read as a trace: {error}\n  fix: {fix}") from error
    programs = collections.Counter(name for name, _ in events)
    if not events:
        raise ProfileError(
            f"{file} has no event of a compiled program: nothing ran while it was recorded, or recording ended too soon"
            "\n  fix: profile whole steps, and wait for their results: jax.block_until_ready(state)"
        )
    if program not in programs:
        listed = ", ".join(f"{name} ({count} events)" for name, count in programs.most_common(_SHOWN))
        raise ProfileError(
            f"{file} is a trace of another program: it has no event of {program}, only of {listed}"
            "\n  fix: profile this recipe with this layout, or explain the program that was traced"
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
            f"there is no trace in {path}"
            "\n  fix: pass a file that ends in .xplane.pb, or the folder given to jax.profiler"
        )
    return files[-1]


def _events(data: jax.profiler.ProfileData) -> Iterator[tuple[str, TraceEvent]]:
    """Yield (program, event) for each execution of an instruction of a compiled program."""
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events if line.name != _PYTHON else ():
                stats = dict(event.stats)
                if "hlo_op" in stats and "hlo_module" in stats:
                    name, times = str(stats["hlo_op"]), (event.start_ns * 1e-9, event.duration_ns * 1e-9)
                    yield str(stats["hlo_module"]), TraceEvent(name, (plane.name, line.name), *times)
