"""Modules that rearrange signals: concatenation and sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import BrainError, Kind, Module, Port, Shape, State, not_positive
from outlay.brain.registry import register


@register("concat")
@dataclass(frozen=True)
class Concat(Module):
    """Flatten and concatenate the inputs in the order of the connections: output = [x1, x2, ...].

    From Spark (Nogarx/Spark), `Concat` and, with a shape, `ConcatReshape`. Like every module, it adds one step of
    delay.

    Ports: `inputs` (any shape) -> `output` (n,), or of the given shape. No state.

    Attributes:
        kind: the kind of the ports: `spikes` or `values`.
        shape: the shape of the output, with as many elements as the inputs; None for a flat output.
    """

    kind: Kind = "spikes"
    shape: tuple[int, ...] | None = None

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `inputs`."""
        return {"inputs": Port(self.kind)}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `output`."""
        if self.shape is None:
            return {"output": Port(self.kind, (math.prod(shapes["inputs"]),))}
        if "inputs" in shapes and math.prod(shapes["inputs"]) != math.prod(self.shape):
            raise BrainError(
                f"shape {self.shape} has {math.prod(self.shape)} elements, and {math.prod(shapes['inputs'])} arrive\n"
                "a shape with as many, or none for a flat one"
            )
        return {"output": Port(self.kind, tuple(self.shape))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return an empty state."""
        return {}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step."""
        return state, {"output": inputs["inputs"].reshape(-1 if self.shape is None else self.shape)}

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Pass the signs of the inputs on."""
        return {"output": read["inputs"]} if self.kind == "spikes" else {}

    def problems(self, *, dt: float) -> list[str]:
        """Report a kind that does not exist."""
        return _kind_problems(self.kind)


@register("sampler")
@dataclass(frozen=True)
class Sampler(Module):
    """Return fixed random samples of the inputs: output[k] = x[indices[k]].

    Samples are drawn once, with replacement, so a sample may be larger than the population. `disjoint` samples are
    dealt
    out: no element is in two samples before every element is in one. From Spark (Nogarx/Spark), `Sampler`.

    Ports: `inputs` (any shape) -> `output` (sample_size,); with several samples `output_0`, `output_1` and so on.

    State: `indices` (sample_size,); with several samples (num_outputs, sample_size).

    Attributes:
        sample_size: the size of a sample.
        kind: the kind of the ports: `spikes` or `values`.
        num_outputs: the number of samples.
        disjoint: whether samples are disjoint, as far as there are enough elements.
    """

    sample_size: int
    kind: Kind = "spikes"
    num_outputs: int = 1
    disjoint: bool = False

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `inputs`."""
        return {"inputs": Port(self.kind)}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `output`, or one port per sample."""
        return {port: Port(self.kind, (self.sample_size,)) for port in self._ports}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Draw the samples."""
        num_values, num_drawn = math.prod(shapes["inputs"]), self.num_outputs * self.sample_size
        if self.disjoint:
            drawn = jax.random.permutation(key, num_values)[jnp.arange(num_drawn) % num_values]
        else:
            drawn = jax.random.randint(key, (num_drawn,), 0, num_values)
        shape = (self.sample_size,) if self.num_outputs == 1 else (self.num_outputs, self.sample_size)
        return {"indices": drawn.astype(jnp.uint32).reshape(shape)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step."""
        samples = inputs["inputs"].reshape(-1)[state["indices"].reshape(-1, self.sample_size)]
        return state, dict(zip(self._ports, samples, strict=True))

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return the signs of the samples."""
        # What a step does to spikes it does to their signs; dt plays no part in it.
        return self.step(state, read, dt=1.0)[1] if self.kind == "spikes" else {}

    def problems(self, *, dt: float) -> list[str]:
        """Report empty samples or none, and a kind that does not exist."""
        return not_positive(self, "sample_size", "num_outputs") + _kind_problems(self.kind)

    @property
    def _ports(self) -> list[str]:
        return ["output"] if self.num_outputs == 1 else [f"output_{sample}" for sample in range(self.num_outputs)]


def _kind_problems(kind: str) -> list[str]:
    return [] if kind in ("spikes", "values") else [f"kind is {kind!r}\n'spikes' or 'values'"]
