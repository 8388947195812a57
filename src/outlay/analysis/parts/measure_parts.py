"""Measure what the parts of a graph cost: each alone on one device, and the exchange between devices.

A part reads what it would read in a real run; an exchange is measured with parts that compute nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.analysis.parts.part_facts import bound_of
from outlay.core.error_types import ExplainError
from outlay.core.one_line import OneLine
from outlay.core.quantities import format_seconds
from outlay.graph.graph_loop import GraphLoop, count_steps
from outlay.graph.step_graph import CACHE, INPUTS, Part, Source, StepGraph
from outlay.layout.strategies import by_module
from outlay.program.program import Program
from outlay.render.page import Column, Line, Page, Row, Table
from outlay.render.report import Report

NUM_ROUNDS = 5


@dataclass(frozen=True)
class PartSeconds(OneLine):
    """The time of a step of each part of a graph alone on one device, and what it means for every placement.

    Attributes:
        seconds: per step, by part.
    """

    seconds: Mapping[str, float]

    @property
    def sum(self) -> float:
        """The time of all parts, one after the other."""
        return sum(self.seconds.values())

    @property
    def largest(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def best_gain(self) -> float:
        """The largest possible speed-up of placing whole parts: sum over max."""
        most = self.seconds[self.largest]
        return self.sum / most if most else 1.0

    @property
    def bound(self) -> str:
        """The most that can be gained, in a sentence."""
        return bound_of({name: self.share(name) for name in self.seconds}, self.best_gain, "time")

    def share(self, name: str) -> float:
        """Return the share of a part in the time of all."""
        return self.seconds[name] / (self.sum or 1.0)


@dataclass(frozen=True)
class PartTimes(PartSeconds, Report):
    """The measured time of a step of each part alone on one device.

    Attributes:
        seconds: per step, by part.
        together: per step of all parts in one program on this device, with all their outputs recorded.
        device: the device, in words.
        num_steps: steps per timed run; each time is the median over runs.
    """

    together: float
    device: str
    num_steps: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        facts = {"sum": self.sum, "largest": self.largest, "best_gain": self.best_gain}
        return {**super().to_dict(), **facts}

    def _page(self) -> Page:
        rows = [Row([name, format_seconds(spent), f"{self.share(name):.0%}"]) for name, spent in self.seconds.items()]
        together = f"together in one program {format_seconds(self.together)}"
        rows.append(Row(["sum", format_seconds(self.sum), together], "strong"))
        return Page(
            "What each part costs alone on one device",
            [
                Table([Column("part"), Column("a step", "number"), Column("of the time")], rows),
                Line(self.bound),
            ],
            headline=f"each part alone, measured on {self.device}, medians of {self.num_steps} steps",
        )


def measure_parts(
    graph_loop: GraphLoop,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    *,
    device: jax.Device | None = None,
    seed: int = 0,
    num_rounds: int = NUM_ROUNDS,
) -> PartTimes:
    """Measure a step of each part of a graph, alone on one device.

    First all parts run together. Then each runs by itself with its state after that run, and reads what the others
    produced in it: the cost of a part may depend on what it reads, for example if that is sparse.

    Args:
        graph_loop: the graph loop.
        init: creates the state from a PRNG key.
        inputs: the inputs of as many steps as are measured at a time.
        device: the device; by default the first that is attached.
        seed: the seed of the state.
        num_rounds: runs of each part, which take turns; the median counts.

    Raises:
        ExplainError: the device is not attached.

    Example:
        >>> from outlay.graph import Part, Source, StepGraph
        >>> def grow(state, read):
        ...     return {"w": state["w"] @ state["w"] / 200}, {"out": read["in"][0] + 1}
        >>> def wait(state, read):
        ...     return state, {"out": read["in"][0]}
        >>> graph = StepGraph({
        ...     "large": Part(grow, {"in": (Source("small", "out"),)}),
        ...     "small": Part(wait, {"in": (Source("large", "out"),)})})
        >>> def init(key):
        ...     zero = {"out": jnp.zeros(())}
        ...     return {"large": {"w": jnp.ones((200, 200))}, "small": {}, "cache": {"large": zero, "small": zero}}
        >>> times = outlay.analysis.measure_parts(outlay.graph.GraphLoop(graph), init, {"step": np.arange(20)})
        >>> times.largest, times.best_gain < 1.5
        ('large', True)
    """
    where = device or jax.local_devices()[0]
    if where not in jax.local_devices():
        raise ExplainError(
            f"{where} is not attached to this process, so nothing can be measured on it\n"
            "  fix: use a device of jax.local_devices(), or outlay.explain(program), which estimates"
        )
    graph, num_steps = graph_loop.graph, count_steps(inputs)
    with jax.default_device(where):
        inputs = {name: jax.device_put(value, where) for name, value in inputs.items()}
        recording = jax.jit(GraphLoop(graph, record=tuple(_ports(graph))), donate_argnums=0)
        together = Repeated(recording, jax.jit(init)(jax.random.key(seed)), inputs)
        seen = {tuple(port.split(":")): values for port, values in together.run()["recorded"].items()}
        alone = {name: _alone(graph, name, together.state[name], seen, inputs) for name in graph.parts}
        medians = median_seconds({"": together, **alone}, num_rounds)
    return PartTimes(
        seconds={name: medians[name] / num_steps for name in alone},
        together=medians[""] / num_steps,
        device=str(where.device_kind),
        num_steps=num_steps,
    )


class Repeated:
    """Something that is run again and again, each time from the state that it has left.

    Args:
        step: `step(state, inputs)` returns a new state, and outputs.
        state: the state to begin with; it may be donated.
        inputs: the inputs of every run.
    """

    def __init__(self, step: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> None:
        self.state = state
        self._step, self._inputs = step, inputs

    def run(self) -> Any:
        """Run it once, to its end, and return its outputs."""
        self.state, outputs = jax.block_until_ready(self._step(self.state, self._inputs))
        return outputs


def median_seconds(repeated: Mapping[str, Repeated], num_rounds: int = NUM_ROUNDS) -> dict[str, float]:
    """Return the median time of a run of each; they take turns, since a machine slows down and speeds up."""
    medians: dict[str, list[float]] = {name: [] for name in repeated}
    for number in range(num_rounds + 1):
        for name, one in repeated.items():
            start = time.perf_counter()
            one.run()
            if number:  # the first run compiles
                medians[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in medians.items()}


def _alone(graph: StepGraph, name: str, state: Any, seen: Mapping[Any, Any], inputs: Any) -> Repeated:
    """Return one part by itself, which reads what the others produced before."""
    step, num_steps = graph.parts[name].step, count_steps(inputs)
    read = {
        port: tuple(inputs[s.port] if s.part == INPUTS else seen[s.part, s.port] for s in sources)
        for port, sources in graph.parts[name].reads.items()
    }
    run = jax.jit(lambda state, read: jax.lax.scan(step, state, read, length=num_steps), donate_argnums=0)
    # A copy, since the run gives its state away and the others go on with theirs.
    return Repeated(run, jax.tree.map(lambda leaf: leaf.copy(), state), read)


def _ports(graph: StepGraph) -> list[str]:
    """Return every output that some part reads from another."""
    return list(dict.fromkeys(str(source) for source in graph.sources(graph.parts) if source.part != INPUTS))


_AXIS = "devices"
_NUM_STEPS = 200
_FEW, _MANY = 1, 4


@dataclass(frozen=True)
class ExchangeTimes:
    """The cost of an exchange between groups of devices, however little is sent.

    Attributes:
        per_group: seconds for each group: to launch its program, and to pass it what it reads.
        per_transfer: seconds for each array that is sent to a device.
        per_gather: seconds for one small all-gather, by the number of devices.
    """

    per_group: float
    per_transfer: float
    per_gather: Mapping[int, float]


def measure_exchange(devices: Sequence[jax.Device]) -> ExchangeTimes:
    """Measure exchanges on attached devices, with a ring of parts that pass on what they read, and with all-gathers.

    Two measurements, with one array and with several from each part to the next, tell groups and transfers apart.
    All-gathers are measured over two devices and over all; the numbers between are interpolated.

    Args:
        devices: at least two.
    """
    num = len(devices)
    few, many = (_step_seconds(devices, num_ports) for num_ports in (_FEW, _MANY))
    # Noise may make the difference negative.
    per_transfer = max(0.0, (many - few) / (num * (_MANY - _FEW)))
    two, most = _gather_seconds(devices[:2]), _gather_seconds(devices) if num > 2 else 0.0
    more = max(0.0, most - two) / max(1, num - 2)
    per_gather = {n: two + more * (n - 2) for n in range(2, num + 1)}
    return ExchangeTimes(max(0.0, few / num - _FEW * per_transfer), per_transfer, per_gather)


def _gather_seconds(devices: Sequence[jax.Device]) -> float:
    """Return the time of one all-gather of a few words, in a loop of them."""
    mesh = _mesh(devices)

    def one(words: Any, _: Any) -> Any:
        return jax.lax.all_gather(words, _AXIS)[0] + 1, None

    def loop(words: Any) -> Any:
        return jax.lax.scan(one, words, length=_NUM_STEPS)[0]

    run = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=P(_AXIS), out_specs=P(_AXIS), check_vma=False))
    words = jax.device_put(np.zeros(16 * len(devices), np.uint32), NamedSharding(mesh, P(_AXIS)))
    return _seconds_a_step(Repeated(lambda words, _: (run(words), None), words, None))


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))


def _seconds_a_step(loop: Repeated) -> float:
    return median_seconds({"": loop})[""] / _NUM_STEPS


def _step_seconds(devices: Sequence[jax.Device], num_ports: int) -> float:
    """Return the time of a step of a ring of parts with a number of arrays from each to the next."""
    names = [f"part_{number}" for number in range(len(devices))]
    ports = [f"port_{number}" for number in range(num_ports)]

    def step(state: Any, read: Any) -> Any:
        return state, {port: read[port][0] for port in ports}

    parts = {
        name: Part(step, {port: (Source(names[number - 1], port),) for port in ports})
        for number, name in enumerate(names)
    }

    def init(key: Any) -> Any:
        blank = {port: jnp.zeros(64, jnp.int8) for port in ports}
        return {name: {"count": jnp.zeros(1)} for name in names} | {CACHE: dict.fromkeys(names, blank)}

    layout = by_module({name: number for number, name in enumerate(names)})
    inputs = {"step": np.arange(_NUM_STEPS)}
    program = Program(GraphLoop(StepGraph(parts)), init, inputs, layout, _mesh(devices), "placed")
    return _seconds_a_step(Repeated(program, program.init(jax.random.key(0)), inputs))
