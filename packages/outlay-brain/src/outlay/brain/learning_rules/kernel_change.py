"""The change of a kernel in one step: the equations of a learning rule, independent of how they are computed."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.kit import OneLine

Rows = Mapping[str, jax.Array]
"""The rows of one post neuron in float32: that of K as `kernel`, and that of each per-pair leaf of the rule."""
OnSpike = Callable[[jax.Array, Rows, Arrivals], jax.Array]
"""dK of all pairs of one post neuron that spiked: a function of its number, its rows and the arriving spikes."""


class KernelChange(OneLine, abc.ABC):
    """The change of the pairs in one step: the equations of a rule, from which every implementation starts.

    `to_all` computes all pairs at once, as plain JAX does; `to_row` those of one post neuron, for a single pass over
    all.
    """

    pairs: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {}
    """How each leaf that the rule keeps for each pair goes on, of K before it changes and of itself."""

    @abc.abstractmethod
    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """Return the kernel after the step.

        Args:
            kernel: K, (post, pre).
            pairs: the per-pair leaves of the rule, after the step.
            arrivals: the arriving spikes.
            spikes: which post neurons spiked.
            dt: the duration of a step, ms.
        """

    @abc.abstractmethod
    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """Return one row of the kernel after the step, in float32.

        Args:
            neuron: the number of the post neuron.
            rows: its rows; those of the per-pair leaves are from after the step.
            arrived: the spikes that arrived at it.
            spiked: whether it spiked.
            dt: the duration of a step, ms.
        """


@dataclass(frozen=True)
class ChangeOnSpikes(KernelChange):
    """K' = max(K + dt dK, 0), up to the ceiling, where dK is nonzero only if a spike arrived or the post neuron spiked.

    Attributes:
        on_arrival: dK of a pair at which a spike arrived while the post neuron did not spike: (post,), or (post, 2) for
            excitatory and inhibitory pre neurons.
        on_spike: dK of all pairs of one post neuron that spiked.
        ceiling: the largest value of K, in the shape of `on_arrival`; None for none.
        pairs: as in `KernelChange`.
    """

    on_arrival: jax.Array
    on_spike: OnSpike
    ceiling: jax.Array | None = None
    pairs: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = field(default_factory=dict)

    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """Return the kernel after the step; computes the rows of neurons that spiked one by one."""
        units, dtype = len(kernel), kernel.dtype
        # The numbers of the neurons that spiked, then `units` for each of the others, and once more as a sentinel.
        numbers = jnp.where(spikes, jnp.arange(units, dtype=jnp.uint32), jnp.uint32(units))
        spiked = jax.lax.optimization_barrier(jnp.pad(jnp.sort(numbers), (0, 1), constant_values=units))

        def change_row(carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            place, kernel = carried
            neuron = row_of(spiked, place)
            row = row_of(kernel, neuron).astype(jnp.float32)
            rows = {"kernel": row, **{name: row_of(leaf, neuron) for name, leaf in pairs.items()}}
            row = row + dt * self.on_spike(neuron, rows, arrivals.at(neuron))
            return place + 1, jax.lax.dynamic_update_index_in_dim(kernel, row.astype(dtype), neuron, 0)

        # Few neurons spike in a step, so compute the terms that only they need for their rows alone, in place.
        _, kernel = jax.lax.while_loop(
            lambda carried: row_of(spiked, carried[0]) < units, change_row, (jnp.uint32(0), kernel)
        )
        # The rows of neurons that spiked are complete except for the maximum, so add nothing to them.
        on_arrival = jnp.where(spikes if self.on_arrival.ndim == 1 else spikes[:, None], 0, dt * self.on_arrival)
        arrived = jnp.where(arrivals.arrived, to_pairs(on_arrival, arrivals.inhibitory), 0)
        changed = jnp.maximum(kernel.astype(jnp.float32) + arrived, 0)
        if self.ceiling is not None:
            changed = jnp.minimum(changed, to_pairs(self.ceiling, arrivals.inhibitory))
        return changed.astype(dtype)

    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """Return one row of the kernel after the step."""

        def of_row(by_post: jax.Array) -> jax.Array:
            both = row_of(by_post, neuron)
            return both if both.ndim == 0 else jnp.where(arrived.inhibitory, both[1], both[0])

        if spiked:
            added = dt * self.on_spike(neuron, rows, arrived)
        else:
            added = jnp.where(arrived.arrived, dt * of_row(self.on_arrival), 0)
        changed = jnp.maximum(rows["kernel"] + added, 0)
        return changed if self.ceiling is None else jnp.minimum(changed, of_row(self.ceiling))


@dataclass(frozen=True)
class ChangeEverywhere(KernelChange):
    """K' = max(K + dt dK, 0), up to the ceiling, where any pair may change in any step.

    Attributes:
        change: dK as a function of K, of the arriving spikes, and of a function that broadcasts post-neuron values to
            pairs.
        ceiling: the largest value of K; None for none.
    """

    change: Callable[[jax.Array, Arrivals, Callable[[jax.Array], jax.Array]], jax.Array]
    ceiling: float | None = None

    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """Return the kernel after the step."""
        before = kernel.astype(jnp.float32)
        change = self.change(before, arrivals, lambda by_post: by_post[:, None])
        return self._within(before + dt * change).astype(kernel.dtype)

    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """Return one row of the kernel after the step."""
        change = self.change(rows["kernel"], arrived, lambda by_post: row_of(by_post, neuron))
        return self._within(rows["kernel"] + dt * change)

    def _within(self, kernel: jax.Array) -> jax.Array:
        kernel = jnp.maximum(kernel, 0)
        return kernel if self.ceiling is None else jnp.minimum(kernel, self.ceiling)


def to_pairs(by_post: jax.Array, inhibitory: jax.Array) -> jax.Array:
    """Broadcast values of post neurons to their pairs: (post,) to (post, 1), and (post, 2) to (post, pre).

    Args:
        by_post: (post,), or (post, 2) for excitatory and inhibitory pre neurons.
        inhibitory: which pre neurons are inhibitory.
    """
    if by_post.ndim == 1:
        return by_post[:, None]
    return jnp.where(inhibitory[None], by_post[:, 1:], by_post[:, :1])


def row_of(array: jax.Array, neuron: jax.Array) -> jax.Array:
    """Select the row of one neuron."""
    # Plain indexing would add operations that handle negative and out-of-bounds indices.
    return jax.lax.dynamic_index_in_dim(array, neuron, keepdims=False)
