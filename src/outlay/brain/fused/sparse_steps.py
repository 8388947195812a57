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

    def begin(self, bounds: list[jax.ShapeDtypeStruct]) -> Any:
        """Return it before the first step.

        Args:
            bounds: shape and dtype of the arrays that bound the kernel.
        """
        return {
            "numbers": jnp.zeros(4, jnp.uint8),
            "bounds": [jnp.zeros(bound.shape, bound.dtype) for bound in bounds],
        }

    def vectors(self, units: int) -> list[jax.Array]:
        """Return the number of each vector's last step, before the first; nothing where vectors are never behind.

        Steps that leave out some are numbered, and begin again at 0.

        Args:
            units: the number of post neurons.
        """
        return [jnp.zeros((units, self.num_vectors), jnp.uint8)] if self.unreached.goes_on else []

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

    def step(self, carried: Any, few: jax.Array, pending: jax.Array, bounds: list[jax.Array]) -> Any:
        """Return it after another step, with what the pass does in this step.

        Its numbers are in one array, since in a short step each operation costs more than what it computes: what the
        pass does, the number of the step, and whether some vectors are behind and kernels within their bounds after it.

        Args:
            carried: after the step before.
            few: whether spikes arrive at few pairs.
            pending: whether there was a step, whose change is still to be made.
            bounds: the arrays that bound the kernel.
        """
        _, last, behind, within = carried["numbers"]
        same = [jnp.array_equal(now, before) for now, before in zip(bounds, carried["bounds"], strict=True)]
        # Kernels that were given may be out of bounds until a step has changed all of them.
        is_within = functools.reduce(operator.and_, same, within != 0)
        otherwise = jnp.where(behind != 0, jnp.uint8(CATCH_UP), jnp.uint8(DENSE)) if self.unreached.goes_on else DENSE
        mode = jnp.where(few & (is_within | ~pending), jnp.uint8(SPARSE), otherwise)
        number = last + ((mode != DENSE) & pending).astype(jnp.uint8)
        is_behind = jnp.where(pending, (mode == SPARSE).astype(jnp.uint8), behind)
        numbers = jnp.stack([mode, number, is_behind, within | pending.astype(jnp.uint8)])
        return {"numbers": numbers, "bounds": bounds}
