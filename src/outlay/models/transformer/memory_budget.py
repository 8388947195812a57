"""Choose which values a layer keeps for its backward pass within a share of memory, by the cost to compute them again.

As torch's `activation_memory_budget` does, which torchtitan's memory budget sets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Var

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.jax_needed_operations import needed_for
from outlay.core.jax_tracing import replay
from outlay.core.traced_flops import count_flops
from outlay.models.attention.blockwise import Mask, blockwise
from outlay.models.transformer.config import KEPT, TransformerConfig, remat_budget
from outlay.models.transformer.layer import Block, rotation


@functools.cache
def kept_values(config: TransformerConfig, block: type[Block]) -> tuple[str, ...]:
    """Return the names of the values that a layer keeps, by the budget of its config.

    One value after the other is taken, first those that save most operations for each byte, if it still fits and saves
    operations beside those that are taken. A larger budget so never keeps less. Sizes are those of activations:
    parameters that are cast are none.

    The names follow from the config alone. They are found without the mesh and the program around, in a thread of its
    own, so that a program is the same on all hardware.

    Args:
        config: the configuration, whose `remat` is a budget between 0 and 1.
        block: the class of its layers.

    Example:
        >>> import dataclasses
        >>> from outlay.models.transformer.published import MODELS
        >>> config = dataclasses.replace(MODELS["tiny"].config, remat="memory_budget:0.4")
        >>> kept_values(config, Block)
        ('attention', 'queries', 'keys', 'residual', 'values', 'branch_input')
    """
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_choose, config, block).result()


def _choose(config: TransformerConfig, block: type[Block]) -> tuple[str, ...]:
    of_all, sizes, flops = _measured(dataclasses.replace(config, remat="none"), block)
    room, least = (remat_budget(config.remat) or 0.0) * of_all, flops(())
    taken: tuple[str, ...] = ()
    for name, size in sizes.items():
        if size <= room and flops((*taken, name)) < least:
            taken, room = (*taken, name), room - size
            least = flops(taken)
    return taken


@functools.cache
def _measured(
    config: TransformerConfig, block: type[Block]
) -> tuple[int, dict[str, int], Callable[[tuple[str, ...]], float]]:
    """Return the bytes of a layer, the bytes of each useful value, the best first, and a counter of operations."""
    with within(current_attend, _block_by_block):
        traced = _Traced(config, block)
    flops = functools.cache(traced.flops)
    saved = {name: flops(()) - flops((name,)) for name in KEPT}
    sizes = {name: traced.num_bytes((name,)) for name in KEPT if saved[name] > 0}
    best = sorted((name for name in sizes if sizes[name]), key=lambda name: saved[name] / sizes[name], reverse=True)
    return traced.num_bytes(None), {name: sizes[name] for name in best}, flops


def _block_by_block(call: AttentionCall) -> Any:
    mask = Mask(call.causal, call.window)
    return blockwise(call.query, call.key, call.value, None, mask, call.scale)


class _Traced:
    """One layer of a transformer, traced for one sequence.

    Args:
        config: the configuration.
        block: the class of the layer.
    """

    def __init__(self, config: TransformerConfig, block: type[Block]) -> None:
        definition, params = nnx.split(nnx.eval_shape(lambda: block(config, rngs=nnx.Rngs(0))))
        num_tokens = config.num_positions
        x = jax.ShapeDtypeStruct((1, num_tokens, config.width), jnp.dtype(config.dtype))

        def layer(x: Any, params: Any) -> list[Any]:
            angles = rotation(num_tokens, config.head_dim, config.rotary_base) if config.positions == "rotary" else None
            results = jax.tree.leaves(nnx.merge(definition, params)(x, angles))
            return [one for one in results if jnp.issubdtype(one.dtype, jnp.inexact)]

        self._jaxpr, self._leaves = jax.make_jaxpr(layer)(x, params), jax.tree.leaves((x, params))

    def num_bytes(self, names: Sequence[str] | None) -> int:
        """Count the bytes of activations kept beside the input; if names are None, without a checkpoint."""
        run = self._keeping(names)
        jaxpr = jax.make_jaxpr(lambda *leaves: jax.vjp(run, *leaves)[1])(*self._leaves).jaxpr
        activations = {jaxpr.invars[0]}
        for eqn in jaxpr.eqns:
            if any(isinstance(atom, Var) and atom in activations for atom in eqn.invars):
                activations.update(eqn.outvars)
        residuals = {one for one in jaxpr.outvars if isinstance(one, Var) and one in activations} - {jaxpr.invars[0]}
        types: list[Any] = [one.aval for one in residuals]
        return sum(each.size * each.dtype.itemsize for each in types)

    def flops(self, names: tuple[str, ...]) -> float:
        """Count the operations of both passes."""
        run = self._keeping(names)

        def both(*leaves: Any) -> Any:
            results, pull = jax.vjp(run, *leaves)
            return pull(results)

        return count_flops(needed_for(jax.make_jaxpr(both)(*self._leaves))[0])

    def _keeping(self, names: Sequence[str] | None) -> Callable[..., Any]:
        def run(*leaves: Any) -> list[Any]:
            return replay(self._jaxpr, leaves)

        policy = jax.checkpoint_policies.save_only_these_names(*(names or ()))
        return run if names is None else jax.checkpoint(run, prevent_cse=False, policy=policy)
