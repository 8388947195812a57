"""`outlay.profile`: the predicted and the measured time of a step, operation by operation."""

from __future__ import annotations

import collections
import itertools
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from outlay.analysis.attribution.provenance import Origin
from outlay.analysis.cost.lanes import flattened
from outlay.analysis.cost.price import time_on_lanes
from outlay.analysis.cost.schedule import Schedule
from outlay.analysis.verify.batches import KINDS, make_up, take
from outlay.core.error_types import ProfileError
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.devices.mesh_info import check_runnable
from outlay.devices.target import Target
from outlay.program.program import Program
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation
from outlay.report.explain.timeline_trace import origins_of
from outlay.report.profile.profiled import Profile, Timed, TraceEvent

# What runs inside of these is in the trace, too.
_HOLD_OTHERS = ("loop", "branch", "call")

# XLA for GPUs runs most of a step as CUDA graphs, and a trace has one event for all operations of a graph.
_GRAPHS = "xla_gpu_enable_command_buffer"
_GRAPH = "command_buffer"

_NUM_NAMED = 4
_PYTHON = "python"
"""The trace line with Python's own calls; there can be thousands of them."""


@called_as("outlay.profile(program)", num_steps="steps=", batch="batches=[batch] * 3")
def profile(
    program: Program,
    batches: Any = None,
    *,
    steps: int = 3,
    trace: Path | str | None = None,
    target: Target | str | None = None,
) -> Profile:
    """Run some steps under JAX's profiler, and compare the time of each operation with the prediction of `explain`.

    One warm-up step comes first. Times are means over devices, per step; the time of a collective includes waiting for
    other devices. For GPUs the program is compiled without CUDA graphs, whose operations no trace tells apart.

    Args:
        program: the program. It runs on its own devices, attached or simulated, from a freshly initialized state.
        batches: one batch per step, as an iterable or as `batches[step]`, such as a recipe's data. Without them,
            batches of the planned shapes are made up, as for `outlay.verify`.
        steps: the number of measured steps.
        trace: an earlier trace of this very program, to read instead of running anything: an `.xplane.pb` file, or the
            folder that `jax.profiler` wrote to.
        target: the hardware whose speeds are used for the prediction, such as `"my_cpu.toml:8"`; by default that of the
            mesh.

    Raises:
        ProfileError: the trace belongs to another program, has no events, or cannot be read.
        ProgramError: the program is for devices that are not attached, or there are too few batches.

    Example:
        >>> def step(state, batch):
        ...     return state + (batch @ batch.T).mean(), batch.mean()
        >>> batch = np.ones((64, 64), np.float32)
        >>> program = outlay.program(
        ...     step, lambda key: jnp.zeros(()), batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> measured = outlay.profile(program, [batch], steps=1)
        >>> measured.num_steps, measured.measured_seconds > 0
        (1, True)
    """
    if trace is None:
        check_runnable(program.mesh, "a step cannot be profiled")
        program = without_graphs(program)
    explanation = explain(program, target=target)
    if explanation.hlo is None or explanation.schedule is None:
        raise ProfileError("compilation failed: there is nothing to run\n  fix: outlay explain shows why")
    if trace is not None:
        events = read_trace(Path(trace), explanation.hlo.name)
        return joined(explanation, events, _num_steps(explanation.schedule, explanation.hlo.num_devices, events))
    with tempfile.TemporaryDirectory() as folder:
        _run(program, _synthetic_batches(program, steps) if batches is None else take(batches, steps), folder)
        return joined(explanation, read_trace(Path(folder), explanation.hlo.name), steps)


def without_graphs(program: Program) -> Program:
    """Return a program whose operations a GPU starts one by one, so that a trace tells them apart."""
    if program.mesh.devices.flat[0].platform != "gpu":
        return program
    options = program.compiler_options
    note = "without CUDA graphs, in which a trace does not tell operations apart: steps of a run may be faster"
    values = {**options.values, _GRAPHS: ""}
    return program.with_compiler_options(replace(options, values=values, notes=(*options.notes, note)))


def _synthetic_batches(program: Program, steps: int) -> list[Any]:
    return make_up(program.batch_shapes, steps, None, next(iter(KINDS)))


def joined(explanation: Explanation, events: Sequence[TraceEvent], num_steps: int) -> Profile:
    """Join the predictions with a trace, operation by operation.

    Args:
        explanation: the predictions.
        events: the events of the same program in a trace.
        num_steps: the number of steps in the trace.

    Raises:
        ProfileError: the trace has none of the program's operations, or operations inside CUDA graphs.
    """
    assert explanation.schedule is not None
    assert explanation.hlo is not None
    num_devices = explanation.hlo.num_devices
    if graphs := [event.name for event in events if event.name.startswith(_GRAPH)]:
        raise ProfileError(
            f"the trace tells no operation apart inside CUDA graphs: {counted(len(graphs), 'event')} of them, such as "
            f"{graphs[0]}\n"
            f"  fix: record it again with XLA_FLAGS=--{_GRAPHS}= , or let outlay profile run the steps, which does so"
        )
    measured: dict[str, float] = collections.defaultdict(float)
    for event in events:
        # CPU devices share threads, and no event says which device it is of: so sums, and means over devices (decision
        # 34).
        measured[event.name] += event.seconds / num_steps / num_devices
    predicted: dict[str, float] = collections.defaultdict(float)
    for stretch in flattened(time_on_lanes(explanation.schedule).stretches):
        predicted[stretch.name] += stretch.seconds * stretch.runs
    if not predicted.keys() & measured.keys():
        names = ", ".join(itertools.islice(measured, 3))
        raise ProfileError(
            f"the trace is of another program of the same name, whose operations ({names}, ...) this one does not have"
            "\n  fix: profile this recipe with this layout, or explain the program that was traced"
        )
    origins, leaves = origins_of(explanation), {one.name: one.leaf for one in explanation.collectives}
    timed = [
        _timed(name, origins[name], leaves.get(name, ""), predicted[name], measured.get(name)) for name in predicted
    ]
    holding = {
        event.name for block in explanation.schedule.blocks.values() for event in block if event.kind in _HOLD_OTHERS
    }
    unknown = sum(seconds for name, seconds in measured.items() if name not in holding and name not in predicted)
    return Profile(explanation, num_steps, num_devices, tuple(timed), unknown, tuple(events))


def _timed(name: str, origin: Origin, leaf: str, predicted: float, measured: float | None) -> Timed:
    line = str(origin.source or "")
    return Timed(name, origin.primitive, origin.phase, origin.module, line, leaf, predicted, measured)


def _num_steps(schedule: Schedule, num_devices: int, events: Sequence[TraceEvent]) -> int:
    """Count the steps in a trace: how often a device ran an instruction that a step runs once."""
    once = {event.name for event in schedule.blocks[schedule.entry] if event.kind == "work"}
    counts = collections.Counter(event.name for event in events if event.name in once)
    # The usual count: a trace that begins or ends within a step has some instructions once less.
    usual = collections.Counter(counts.values()).most_common(1)
    return max(1, round(usual[0][0] / num_devices)) if usual else 1


def _run(program: Program, batches: Sequence[Any], folder: str) -> None:
    state, outputs = program(program.init(jax.random.key(0)), batches[0])
    jax.block_until_ready(state)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # its events, one a call, would be most of the trace and of the time
    with jax.profiler.trace(folder, profiler_options=options):
        for batch in batches:
            state, outputs = program(state, batch)
        jax.block_until_ready((state, outputs))


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
        listed = ", ".join(f"{name} ({count} events)" for name, count in programs.most_common(_NUM_NAMED))
        raise ProfileError(
            f"{file} is a trace of another program: it has no event of {program}, only of {listed}"
            "\n  fix: profile this recipe with this layout, or explain the program that was traced"
        )
    executions = [event for name, event in events if name == program]
    first = min(event.begin for event in executions)
    shifted = [TraceEvent(one.name, one.track, one.begin - first, one.seconds) for one in executions]
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
