"""A transformer with mixtures of experts as pure functions for training: its loss, and what it says of its routing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.expert_config import ExpertConfig
from outlay.models.transformer.language_model import chunked_loss, definition_of, language_model


def expert_language_model(
    config: ExpertConfig, token: str = "byte"
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """Return a `Transformer` with experts as two pure functions for training, as `language_model` does.

    The loss of a sequence has the balance loss and the z loss of its routing, averaged over layers, times the factors
    of the config. Its metrics are those without these, `expert_load`, the share of choices of each expert,
    `busiest_expert`, the largest load of an expert in a layer in multiples of an even load, and `dropped_share`.

    Args:
        config: the configuration.
        token: what a token is, for the name of the metric.

    Example:
        >>> config = ExpertConfig(256, 16, 2, 2, 2, 8, 32, dtype="float32", num_experts=4)
        >>> init_params, loss = expert_language_model(config)
        >>> params, batch = jax.eval_shape(init_params, jax.random.key(0)), {"tokens": np.zeros((2, 16), np.uint8)}
        >>> losses, metrics = jax.eval_shape(loss, params, batch, None)
        >>> stacks = params["layers"]["feed_forward"]["experts"]
        >>> losses.shape, metrics["expert_load"].shape, stacks["up"]["kernel"].shape
        ((2,), (2, 4), (2, 4, 16, 32))
    """
    definition = definition_of(config)

    def loss(params: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        model, tokens = nnx.merge(definition, params), batch["tokens"].astype(jnp.int32)
        table = model.embedding.table()
        hidden, routing = model.hidden_and_routing(tokens, table)
        losses = chunked_loss(hidden, model.head_kernel(table), tokens, config.loss_chunks)
        of_layers = routing.metrics()
        means = {name: x.mean(axis=0) for name, x in of_layers.items()}
        metrics = {
            f"bits_per_{token}": losses / math.log(2),
            **means,
            "busiest_expert": of_layers["expert_load"].max(axis=(0, -1)) * config.num_experts,
        }
        return losses + config.balance * means["balance_loss"] + config.z * means["z_loss"], metrics

    return language_model(config, token)[0], loss
