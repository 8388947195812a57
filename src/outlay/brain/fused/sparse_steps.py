"""Steps in which few pairs are reached by a spike: a pass leaves out the others, and nobody sees that it did.

Whether a step is sparse is seen in the step, by the share of pairs at which a spike arrives. What the rule keeps of
pairs that were left out is behind, and goes on when a spike reaches them, or when all are wanted.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.fused.unreached import Unreached

DENSE, SPARSE, CATCH_UP = 0, 1, 2
"""What a pass does in a step: all pairs; those that are reached; all pairs, some of which are behind."""
MOST_REACHED = {False: 0.3, True: 0.18}
"""The share of vectors that spikes reach up to which a step is sparse: where nothing goes on, and where what the rule
keeps does. One that is reached now and then counts twice, since it takes longer than one that always is. With spikes
here and there these are 1 % and half a per cent of the pairs; with more a dense step is faster (measured)."""


@dataclass(frozen=True)
class SparseSteps:
    """What goes through a loop besides the pairs.

    Attributes:
        unreached: what a step does to pairs that no spike reaches.
        num_vectors: how many vectors of pairs a row has, each of which is left out by itself.
    """

    unreached: Unreached
    num_vectors: int

    def begin(self, units: int, bounds: list[jax.ShapeDtypeStruct]) -> Any:
        """Return it before the first step.

        Args:
            units: the number of post neurons.
            bounds: shape and dtype of the arrays that bound the kernel.
        """
        carried: dict[str, Any] = {"within": jnp.zeros((), bool)}
        carried["bounds"] = [jnp.zeros(bound.shape, bound.dtype) for bound in bounds]
        if self.unreached.goes_on:
            # The number of the last step of each vector, among those that left out some; all numbers begin again at 0.
            vectors = jnp.zeros((units, self.num_vectors), jnp.uint8)
            carried |= {"behind": jnp.zeros((), bool), "last": jnp.zeros((), jnp.uint8), "vectors": vectors}
        return carried

    def bounds(self, consts: list[Any]) -> list[Any]:
        """Select what bounds the kernel, of the arrays that the equations close over, those of quiet rows first."""
        return [consts[k] for k in self.unreached.bounds]

    def few_arrive(self, words: jax.Array, num_bits: int) -> jax.Array:
        """Return whether spikes reach few vectors, in this step and in the last.

        Args:
            words: the spikes of each pre neuron that are on their way or arrive.
            num_bits: how many steps they are of, at each of which as many pairs look.
        """
        num_spikes = jax.lax.population_count(words).astype(jnp.int32)
        width = -(-words.size // self.num_vectors)
        of_vectors = jnp.pad(num_spikes, (0, width * self.num_vectors - words.size)).reshape(self.num_vectors, width)
        steps = jnp.minimum(jnp.sum(of_vectors, axis=1), num_bits)
        reached = jnp.sum(steps * (2 * num_bits - steps))
        return reached <= MOST_REACHED[self.unreached.goes_on] * self.num_vectors * num_bits**2

    def mode(self, carried: Any, few: jax.Array, pending: jax.Array, bounds: list[jax.Array]) -> jax.Array:
        """Choose what the pass does in this step.

        Args:
            carried: after the step before.
            few: whether spikes arrive at few pairs.
            pending: whether there was a step, whose change is still to be made.
            bounds: the arrays that bound the kernel.
        """
        same = [jnp.array_equal(now, before) for now, before in zip(bounds, carried["bounds"], strict=True)]
        # Kernels that were given may be out of bounds until a step has changed all of them.
        within = functools.reduce(operator.and_, same, carried["within"])
        otherwise = jnp.where(carried["behind"], CATCH_UP, DENSE) if self.unreached.goes_on else DENSE
        return jnp.where(few & (within | ~pending), SPARSE, otherwise).astype(jnp.uint8)

    def inputs(self, carried: Any, mode: jax.Array, pending: jax.Array) -> list[jax.Array]:
        """Return what the pass takes: its mode, and where something is behind the number of this step and vectors."""
        if not self.unreached.goes_on:
            return [mode]
        return [mode, carried["last"] + ((mode != DENSE) & pending).astype(jnp.uint8), carried["vectors"]]

    def after(self, carried: Any, taken: list[jax.Array], pending: jax.Array, bounds: list[jax.Array]) -> Any:
        """Return what goes on to the next step.

        Args:
            carried: after the step before.
            taken: what the pass took, with the vectors that it gave.
            pending: as for `mode`.
            bounds: as for `mode`.
        """
        mode, *others = taken
        now = {"within": carried["within"] | pending, "bounds": bounds}
        if others:
            now |= {"behind": jnp.where(pending, mode == SPARSE, carried["behind"])}
            now |= {"last": others[0], "vectors": others[1]}
        return now
