"""Make a Brain a recipe: its step is a graph loop of many steps of dt, its batches are the inputs of these steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay import Layout, Recipe
from outlay.brain.address import port_addresses, select_addresses
from outlay.brain.brain import Brain
from outlay.brain.fused.fused_graph import fused_graph
from outlay.brain.fused.pair_change import PASSES
from outlay.brain.module import MS_PER_S, BrainError, Shape
from outlay.brain.run.closed_loop import ClosedLoop
from outlay.brain.run.feed import Feed, Stimulus
from outlay.brain.run.layouts import MESHES, MODES, brain_layouts, goes_with
from outlay.brain.run.recording_schedule import Moments
from outlay.brain.spike_inputs import read_only_as_spikes
from outlay.errors import Problem
from outlay.graph import GraphLoop, InitByRows, StepGraph
from outlay.kit import INPUTS, counted, did_you_mean, format_bytes, host_memory

CHUNK = 200
"""The steps of one call: enough to make the overhead of a call negligible, few enough for a live progress display."""
NUM_STEPS = 1000
KERNELS = ("jax", *PASSES)
"""What computes the pairs: plain JAX anywhere; or one pass over them, in machine code for this processor with the extra
`fast-cpu`."""


@dataclass(frozen=True)
class Chunks:
    """The inputs of the chunks of a run by index: the `Recipe.data` of a Brain."""

    feed: Feed
    size: int

    def __getitem__(self, number: int) -> Any:
        """Return the inputs of a chunk; for an environment, its current observation."""
        # An environment has one observation at a time, whatever the chunk.
        start = 0 if self.feed.listens else number * self.size
        return self.feed.batch(start, start + self.size)


@dataclass(frozen=True, kw_only=True)
class BrainRecipe(Recipe):
    """A Brain with its inputs and recordings; make one with `BrainRecipe.of`.

    As a `Recipe`, its step runs `chunk` steps of the Brain, so that all commands can use it.

    Attributes:
        brain: the Brain.
        feed: its inputs.
        moments: the steps in which `record` is recorded.
        chunk: the steps of the Brain in one call of the program.
        loop: the environment of a closed loop; None without one.
        kernel: what computes the pairs: one of `KERNELS`.
        generated: the inputs that nobody gave, which are generated.
    """

    runner = "outlay.brain.run.run_recipe:BrainRecipeRun"

    brain: Brain
    feed: Feed
    moments: Moments = field(default_factory=Moments)
    chunk: int = CHUNK
    loop: ClosedLoop | None = None
    kernel: str = "jax"
    generated: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        brain: Brain,
        *,
        name: str = "brain",
        inputs: Mapping[str, Any] | ClosedLoop | None = None,
        steps: int | None = None,
        record: Sequence[str] = (),
        stride: int = 1,
        windows: Sequence[tuple[float, float] | str] = (),
        triggers: Sequence[str] = (),
        seed: int = 0,
        chunk: int = CHUNK,
        kernel: str = "jax",
    ) -> BrainRecipe:
        """Make a recipe of a Brain.

        Args:
            brain: the Brain.
            name: the name of its runs.
            inputs: for each input of the Brain, an array with one entry per step, a constant, or a function of
                the step; or a `ClosedLoop`. Inputs that are not given are generated: slow waves, or random spikes at
                20 Hz where only ports of spikes read them; the result says so.
            steps: the default number of steps; None for as many as there are inputs, or 1000.
            record: address patterns, such as `*_ex:out_spikes` or `**.soma.potential`.
            stride: the number of steps between two recorded steps.
            windows: record only in these time windows, as (from, to) in ms or as text, `"100..200"`.
            triggers: record only around events, such as `"A_ex:out_spikes > 80 +- 50"`.
            seed: the seed of the Brain's random initial state.
            chunk: the steps in one call of the program.
            kernel: what computes the pairs: `jax`; or `fast-cpu`, machine code for this processor.

        Raises:
            BrainError: inputs do not fit the Brain, an address matches nothing, or there is no such kernel.
        """
        check_count("chunk", chunk)
        if kernel not in KERNELS:
            raise BrainError(f"there is no kernel {kernel!r}\n  fix: one of {', '.join(KERNELS)}")
        moments = Moments.of(windows, triggers)
        _check_ports(brain, moments)
        _weigh(brain, chunk)
        feed = _feed(brain, inputs)
        if steps is None:
            steps = feed.num_steps or NUM_STEPS
        return cls(
            name=name,
            init=InitByRows(brain.init, brain.init_rows),
            step=GraphLoop(watched(brain, moments)),
            data=Chunks(feed, chunk),
            steps=steps,
            layouts=brain_layouts(brain),
            meshes=MESHES,
            modes=MODES,
            seed=seed,
            brain=brain,
            feed=feed,
            moments=moments,
            chunk=chunk,
            loop=inputs if isinstance(inputs, ClosedLoop) else None,
            kernel=kernel,
            generated=()
            if isinstance(inputs, ClosedLoop)
            else tuple(name for name in brain.inputs if name not in (inputs or {})),
        ).recording(record, stride)

    def recording(self, record: Sequence[str], stride: int = 1) -> BrainRecipe:
        """Return the recipe with another recording and stride, in the same time windows.

        Raises:
            BrainError: an address matches nothing, or the stride does not fit.
        """
        check_count("stride", stride)
        # No longer than the inputs: the first chunk is the example by which the program is made.
        chunk = min(_chunk(self.chunk, stride, self.loop), self.steps, self.feed.num_steps or self.steps)
        addresses = select_addresses(self.brain, record)
        graph = watched(self.brain, self.moments)
        if self.kernel in PASSES:
            graph = fused_graph(self.brain, graph, self.kernel)
        return dataclasses.replace(
            self,
            step=GraphLoop(graph, record=addresses, stride=stride),
            data=Chunks(self.feed, chunk),
            record=addresses,
            stride=stride,
            chunk=chunk,
        )

    def with_layout(self, layout: Layout) -> BrainRecipe:
        """Return the recipe under a custom layout, on the mesh and in the mode that its rules need."""
        mesh, mode = goes_with(layout)
        return dataclasses.replace(self, layouts={"given": layout}, meshes={"given": mesh}, modes={"given": mode})


def watched(brain: Brain, moments: Moments) -> StepGraph:
    """Extend the graph of a Brain to return, in every step, the ports for rates and triggers.

    Args:
        brain: the Brain.
        moments: the triggers.
    """
    ports = dict.fromkeys((*port_addresses(brain, "spikes"), *(trigger.port for trigger in moments.triggers)))
    also = {address: (address.partition(":")[0], address.partition(":")[2]) for address in ports}
    return dataclasses.replace(brain.graph_of_checked, outputs={**brain.graph_of_checked.outputs, **also})


def check_count(name: str, value: Any) -> None:
    """Raise unless the value is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BrainError(f"{name} must be a whole number of at least 1, not {value!r}")


def _weigh(brain: Brain, chunk: int) -> None:
    """Raise for inputs too large for this machine's memory over the steps of one call, before any is made."""
    memory, size = host_memory(), jnp.dtype(brain.dtype).itemsize
    sizes = {name: math.prod(shape) * size for name, shape in brain.inputs.items()}
    needed = sum(sizes.values())
    if memory is None or chunk * needed <= memory:
        return
    too_large = needed > memory
    fix = "a smaller shape" if too_large else f"chunk={max(1, memory // (2 * needed))}: fewer steps in one call"
    problems = [
        Problem(
            "too large",
            f"{INPUTS}:{name}",
            f"its shape {brain.inputs[name]} is {format_bytes(sizes[name])} a step"
            + ("" if too_large else f", {format_bytes(chunk * sizes[name])} in the {chunk} steps of a call"),
            fix,
        )
        for name in sorted(sizes, key=lambda name: -sizes[name])
        if sizes[name] * chunk > memory / len(sizes)
    ]
    what = f"{format_bytes(needed if too_large else chunk * needed)}"
    raise BrainError(
        f"the inputs of a {'step' if too_large else 'call'} need {what}, and this machine has {format_bytes(memory)}",
        problems,
    )


def _feed(brain: Brain, inputs: Mapping[str, Any] | ClosedLoop | None) -> Feed:
    dtype = jnp.dtype(brain.dtype)
    if isinstance(inputs, ClosedLoop):
        return inputs.feed(brain.inputs, dtype)
    of_spikes = read_only_as_spikes(brain.wiring)
    usual = {
        name: (random_spikes if name in of_spikes else waves)(tuple(shape), brain.dt)
        for name, shape in brain.inputs.items()
    }
    return Stimulus(brain.inputs, {**usual, **(inputs or {})}, dtype)


def _chunk(most: int, stride: int, inputs: Any) -> int:
    """Choose the steps in one call: a multiple of the stride, so that every chunk records at the same positions."""
    if not isinstance(inputs, ClosedLoop):
        return -(-most // stride) * stride
    if inputs.steps_per_action % stride:
        raise BrainError(
            f"stride={stride} does not divide the {inputs.steps_per_action} steps between two actions"
            f"\n  fix: a stride that does, such as 1 or {inputs.steps_per_action}"
        )
    return inputs.steps_per_action


def _check_ports(brain: Brain, moments: Moments) -> None:
    known = port_addresses(brain)
    problems = [
        Problem("trigger", trigger.port, "no module of the Brain writes it", did_you_mean(trigger.port, known))
        for trigger in moments.triggers
        if trigger.port not in known
    ]
    if problems:
        raise BrainError(f"{counted(len(problems), 'trigger has', 'triggers have')} nothing to watch", problems)


PERIOD = 250.0
"""The period of the first wave in ms: several periods in a second, but long compared with a neuron's time constants."""
_RATIO = (1 + math.sqrt(5)) / 2  # irrational, so that no two waves ever repeat together


def waves(shape: Shape, dt: float) -> Callable[[int], np.ndarray]:
    """Return a function from the step to numbers between -1 and 1: sines with different periods.

    Args:
        shape: the shape of the input.
        dt: the duration of a step in ms.

    Example:
        >>> drive = waves((4,), dt=1.0)
        >>> drive(0).shape, bool((drive(123) == waves((4,), dt=1.0)(123)).all())
        ((4,), True)
    """
    count = math.prod(shape)
    periods = PERIOD * (1 + (np.arange(count) * _RATIO) % 1)
    phases = 2 * np.pi * np.arange(count) / max(1, count)

    def value(step: int) -> np.ndarray:
        return np.sin(2 * np.pi * step * dt / periods + phases).reshape(shape)

    return value


_RATE = 20.0
"""The rate of generated spikes in Hz."""


def random_spikes(shape: Shape, dt: float) -> Callable[[int], np.ndarray]:
    """Return a function from the step to random spikes at 20 Hz, the same in every run.

    Example:
        >>> spikes = random_spikes((4,), dt=1.0)
        >>> 50 < int(sum(spikes(step).sum() for step in range(1000))) < 110
        True
    """
    probability = min(1.0, _RATE * dt / MS_PER_S)
    return lambda step: (np.random.default_rng(step).random(shape) < probability).astype(np.int8)


def generated_in_words(names: Sequence[str]) -> str:
    """Say which inputs were generated; empty for none."""
    if not names:
        return ""
    return f"nothing was given for {', '.join(names)}: generated, the same in every run"
