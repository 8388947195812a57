"""What training carries from step to step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "opt_state", "step", "key"], meta_fields=[])
@dataclass(frozen=True)
class TrainState:
    """The state of a `train_step`. Rules reach its leaves as `params.**`, `opt_state.**`, `step` and `key`.

    Attributes:
        params: the parameters, any tree of float arrays.
        opt_state: the optax optimizer's state for them.
        step: how many steps have been taken, a scalar int32.
        key: the PRNG key that every sample's key of every step comes from.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array


def init_state(
    init_params: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
    """An init function for `outlay.program`: from a key to a whole `TrainState`.

    Args:
        init_params: from a key to the parameters; pure.
        optimizer: the optimizer whose state goes along.

    Example:
        >>> init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (4, 2))}, optax.adam(1e-3))
        >>> state = init(jax.random.key(0))
        >>> state.opt_state[0].mu["w"].shape, int(state.step)
        ((4, 2), 0)
    """

    def init(key: jax.Array) -> TrainState:
        key_params, key_samples = jax.random.split(key)
        params = init_params(key_params)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), key_samples)

    return init
