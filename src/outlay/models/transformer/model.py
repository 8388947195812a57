"""The transformer: an embedding, stacked and scanned layers, and an output head."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.core.constrain import constrain
from outlay.models.transformer.config import (
    PRODUCTS,
    TENSORS,
    TransformerConfig,
    remat_budget,
    remat_of,
    remat_turns,
)
from outlay.models.transformer.layer import Block, Norm, branch_input, branch_output, residual, rotation


class Transformer(nnx.Module):
    """A decoder-only transformer.

    The parameters of the layers are stacked: each kernel has a leading dim of `num_layers`, and one scan runs all
    layers, so that the time to trace and compile does not depend on their number.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(config, rngs=rngs)
        self.positions = Positions(config, rngs=rngs) if config.positions == "learned" else None
        block = _block_of(config)
        make = nnx.vmap(lambda key: block(config, rngs=nnx.Rngs(key)))
        self.layers = make(jax.random.split(rngs(), config.num_layers))
        self.norm = Norm(config)
        head = functools.partial(nnx.Linear, use_bias=False, param_dtype=jnp.dtype(config.param_dtype), rngs=rngs)
        self.head = None if config.tied else head(config.width, config.vocabulary)

    def hidden(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """Return the input of the head (B, T, width) for each position, computed from the tokens before it.

        Args:
            tokens: (B, T) of any integer type.
            table: `embedding.table()`.
        """
        return self.hidden_and_routing(tokens, table)[0]

    def hidden_and_routing(self, tokens: jax.Array, table: jax.Array) -> tuple[jax.Array, Any]:
        """Also return the routing of each sequence in each layer with experts, `Routing` of (layers, B); else None."""
        config, num_tokens = self.config, tokens.shape[1]
        # Shifted by one, with token 0 at the start: position t never sees token t, and all T tokens are predicted.
        before = jnp.pad(tokens.astype(jnp.int32)[:, :-1], ((0, 0), (1, 0)))
        x = jnp.take(table, before, axis=0)
        if self.positions is not None:
            x = x + self.positions(num_tokens)[None]
        angles = rotation(num_tokens, config.head_dim, config.rotary_base) if config.positions == "rotary" else None
        definition, stacked = nnx.split(self.layers)

        def layer(x: jax.Array, params: nnx.State) -> tuple[jax.Array, Any]:
            results: Any = nnx.merge(definition, params)(x, angles)
            return results if config.has_experts else (results, None)

        x, routing = over_layers(layer, residual(branch_output(x)), stacked, remat_by_name(config))
        return branch_input(self.norm(x)), routing

    def head_kernel(self, table: jax.Array) -> jax.Array:
        """Return the head's kernel, (width, vocabulary) in the compute dtype; call it once for all uses.

        Layouts can place it as `head`, unless it is the embedding.

        Args:
            table: `embedding.table()`.
        """
        if self.head is None:
            return table.T
        # The barrier has the same reason as in `Embedding.table`: gather the compute dtype, not the parameter dtype.
        kernel = self.head.kernel[...].astype(jnp.dtype(self.config.dtype))
        return constrain(jax.lax.optimization_barrier(kernel), "head", optional=True)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Compute the logits (B, T, vocabulary) of each token (B, T) from the tokens before it."""
        table = self.embedding.table()
        return self.hidden(tokens, table) @ self.head_kernel(table)


def _block_of(config: TransformerConfig) -> type[Block]:
    """Return the class of a layer."""
    if not config.has_experts:
        return Block
    from outlay.models.transformer.expert_layer import ExpertBlock

    return ExpertBlock


def remat_by_name(config: TransformerConfig) -> str:
    """Return a config's policy; instead of a budget, the names of the values that are kept within it."""
    remat = remat_of(config.remat)
    if remat_budget(remat) is None:
        return remat
    from outlay.models.transformer.memory_budget import kept_values  # most models have no budget

    return ",".join(kept_values(config, _block_of(config))) or "full"


class Embedding(nnx.Module):
    """The token embedding.

    Layouts can place the table where it is read, as `table` (vocabulary, width). Split along the vocabulary, each
    device looks up its own tokens; split along the width, it is better gathered first.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dtype = config.dtype
        # A tied table is also a kernel with `width` inputs, and logits should start at order one.
        scale = config.width**-0.5 if config.tied else 1.0
        shape = (config.vocabulary, config.width)
        vectors = scale * jax.random.normal(rngs.params(), shape)
        self.embedding = nnx.Param(vectors.astype(config.param_dtype))

    def table(self) -> jax.Array:
        """Return the vectors in the compute dtype, (vocabulary, width); call it once for all uses."""
        # The barrier keeps XLA from moving the cast past the gather, so that the gather moves the smaller dtype.
        cast = jax.lax.optimization_barrier(self.embedding[...].astype(self.dtype))
        return constrain(cast, "table", optional=True)


class Positions(nnx.Module):
    """A learned vector for each position, with small initial values. Source: Radford et al. (2019).

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dtype = config.dtype
        vectors = 0.01 * jax.random.normal(rngs.params(), (config.num_positions, config.width))
        self.embedding = nnx.Param(vectors.astype(config.param_dtype))

    def __call__(self, num_tokens: int) -> jax.Array:
        """Return the vectors of the first T positions, (T, width), in the compute dtype."""
        return self.embedding[:num_tokens].astype(jnp.dtype(self.dtype))


def over_layers(layer: Callable[..., Any], x: jax.Array, stacked: Any, remat: str) -> tuple[jax.Array, Any]:
    """Apply stacked layers one after the other, with what `TransformerConfig.remat` says for the backward pass.

    Args:
        layer: `layer(x, params) -> (x, more)`, one of them.
        x: what goes into the first.
        stacked: their parameters, with a leading dim of layers.
        remat: see `TransformerConfig`.

    Returns:
        What comes out of the last, and what each gives besides, with a leading dim of layers.
    """
    if not (turns := remat_turns(remat)):
        return jax.lax.scan(rematerialised(layer, remat), x, stacked)
    first = rematerialised(layer, "full")

    def some(x: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        every = []
        for number in range(turns):
            x, more = (layer if number else first)(x, jax.tree.map(lambda leaf, number=number: leaf[number], params))
            every.append(more)
        return x, jax.tree.map(lambda *each: jnp.stack(each), *every)

    apart = jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, turns, *leaf.shape[1:])), stacked)
    x, more = jax.lax.scan(some, x, apart)
    return x, jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, *leaf.shape[2:])), more)


def rematerialised(layer: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Wrap a layer so that it saves what `TransformerConfig.remat` says for the backward pass, and recomputes the rest.

    Args:
        layer: the layer. It must run inside a scan, since XLA could otherwise merge the two passes.
        remat: see `TransformerConfig`.
    """
    policies, remat = jax.checkpoint_policies, remat_of(remat)
    if remat in ("none", "attention"):
        return layer
    if remat == "full":
        policy = policies.nothing_saveable
    elif remat == "products":
        # The products of attention have batch dims, which the policy for products recomputes, so save them by name. In
        # a pipeline all products have one: the stages.
        by_name = policies.save_only_these_names(*PRODUCTS.split(","), "attention")
        policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, by_name)
    else:
        policy = _by_name(remat)
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)


def _by_name(remat: str) -> Callable[..., Any]:
    """Return the policy of values by name, each with where it is kept."""
    parts = [part.partition("=") for part in remat.split(",")]
    places = {TENSORS.get(name, name): stored or "device" for name, _, stored in parts}
    on_host = [name for name, stored in places.items() if stored == "offload"]
    here = [name for name, stored in places.items() if stored == "device"]
    if not on_host:
        return jax.checkpoint_policies.save_only_these_names(*here)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=here,
        names_which_can_be_offloaded=on_host,
        offload_src="device",
        offload_dst="pinned_host",
    )
