"""What a mixture of experts says of its routing: losses for the router, the load of experts, what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from outlay.core.one_line import OneLine


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing(OneLine):
    """What `outlay.experts` says of its routing, one entry for each group of tokens, such as each sample.

    Attributes:
        balance_loss: 1 where choices and scores are even, up to E where one expert has all; add a hundredth of it, or
            less, to the loss of the sample.
        z_loss: the mean squared log-sum-exp of the logits, which keeps them small; times a thousandth or less.
        load: how often each expert was chosen, (…, E) int32; dropped choices count.
        dropped: how many choices of a token and an expert were dropped, int32.
        num_choices: the choices of a group: its tokens times `top_k`.
    """

    balance_loss: jax.Array
    z_loss: jax.Array
    load: jax.Array
    dropped: jax.Array
    num_choices: int = field(metadata={"static": True})

    def metrics(self) -> dict[str, jax.Array]:
        """Return what a training step can have as metrics: both losses, and load and dropped choices as shares.

        Example:
            >>> routing = Routing(jnp.ones(2), jnp.zeros(2), jnp.array([[6, 2], [4, 4]]), jnp.array([2, 0]), 8)
            >>> {name: value.tolist() for name, value in routing.metrics().items() if "loss" not in name}
            {'expert_load': [[0.75, 0.25], [0.5, 0.5]], 'dropped_share': [0.25, 0.0]}
        """
        load, dropped = (jnp.asarray(x).astype(jnp.float32) / self.num_choices for x in (self.load, self.dropped))
        both = {"balance_loss": self.balance_loss, "z_loss": self.z_loss}
        return {**both, "expert_load": load, "dropped_share": dropped}
