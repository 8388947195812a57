"""What it costs to run parts in places of their own, measured with parts that do nothing."""

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

from outlay.graph.rollout import Rollout
from outlay.graph.step_graph import CACHE, Part, Source, StepGraph
from outlay.layout.strategies import by_module
from outlay.program.program import Program

_AXIS = "devices"
_NUM_STEPS = 200
_NUM_ROUNDS = 5
_FEW, _MANY = 1, 4


@dataclass(frozen=True)
class ExchangeTimes:
    """What an exchange between places costs, however little is sent.

    Attributes:
        per_place: seconds for each place: to send its program off, and to be told what it is to read.
        per_transfer: seconds for each array that is sent to a device.
        per_gather: seconds for one all-gather of little, by the number of devices.
    """

    per_place: float
    per_transfer: float
    per_gather: Mapping[int, float]


def measure_exchange(devices: Sequence[jax.Device]) -> ExchangeTimes:
    """Measure it on attached devices, with a ring of parts that only pass on what they read, and with all-gathers.

    With one array from each to the next and with several, two measurements tell places and transfers apart. All-gathers
    are measured over two devices and over all; numbers between are on the line through these.

    Args:
        devices: at least two.
    """
    num = len(devices)
    few, many = (_step_seconds(devices, num_ports) for num_ports in (_FEW, _MANY))
    per_transfer = max(0.0, (many - few) / (num * (_MANY - _FEW)))
    two, most = _gather_seconds(devices[:2]), _gather_seconds(devices) if num > 2 else 0.0
    more = max(0.0, most - two) / max(1, num - 2)
    per_gather = {n: two + more * (n - 2) for n in range(2, num + 1)}
    return ExchangeTimes(max(0.0, few / num - _FEW * per_transfer), per_transfer, per_gather)


def _gather_seconds(devices: Sequence[jax.Device]) -> float:
    """The time of one all-gather of a few words, in a loop of them."""
    mesh = _mesh(devices)

    def one(words: Any, _: Any) -> Any:
        return jax.lax.all_gather(words, _AXIS)[0] + 1, None

    def loop(words: Any) -> Any:
        return jax.lax.scan(one, words, length=_NUM_STEPS)[0]

    run = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=P(_AXIS), out_specs=P(_AXIS), check_vma=False))
    words = jax.device_put(np.zeros(16 * len(devices), np.uint32), NamedSharding(mesh, P(_AXIS)))
    return _median(lambda: run(words))


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))


def _median(run: Callable[[], Any]) -> float:
    """The time of a step of something that takes many; the first run compiles."""
    took = []
    for _ in range(_NUM_ROUNDS + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        took.append((time.perf_counter() - start) / _NUM_STEPS)
    return statistics.median(took[1:])


def _step_seconds(devices: Sequence[jax.Device], num_ports: int) -> float:
    """The time of a step of a ring of parts with so many arrays from each to the next."""
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
    program = Program(Rollout(StepGraph(parts)), init, inputs, layout, _mesh(devices), "placed")
    state = program.init(jax.random.key(0))

    def run() -> Any:
        nonlocal state
        state, found = program(state, inputs)
        return state, found

    return _median(run)
