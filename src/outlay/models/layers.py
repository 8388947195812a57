"""Layers that a model holds as a list: run one after the other, or as a pipeline where the layout says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from outlay.core.context_values import within
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import flatten_paths
from outlay.models.equal_blocks import as_list, check_blocks, check_handed_on, is_stacked

STACKED = "outlay: a list of layers"
"""The name, in a traced program, of leaves of a list that were stacked to be scanned over."""

_is_scanned: ContextVar[bool] = ContextVar("outlay_layers_are_scanned", default=False)


@contextlib.contextmanager
def scan_over_lists() -> Iterator[None]:
    """Have `layers` scan over its blocks, stacked, in what is traced here."""
    with within(_is_scanned, True), fresh_traces():  # of a jitted model, JAX would take the loop of an earlier trace
        yield


def layers(
    blocks: Sequence[Any],
    x: Any,
    *more: Any,
    each: Mapping[str, Any] | None = None,
    run: Callable[..., Any] | None = None,
    **named: Any,
) -> Any:
    """Run equal layers that a model holds as a list, one after the other: `for block in blocks: x = block(x)`.

    It is that loop, with the same numbers, until a rule of the layout says `outlay.layout.pipeline(...)` of the leaves
    of the blocks. The layers then run as a pipeline. Outside a program it needs nothing of Outlay.

    Args:
        blocks: layers of one structure, in a list, a tuple or a module's list (`nnx.List`): modules that are pytrees
            (NNX, Equinox), or the parameters of each layer. Arrays are of the same shapes in all of them, and anything
            else is equal.
        x: what the first layer takes and each hands on, in any pytree of arrays. Its shapes and dtypes stay.
        more: what each layer takes besides, such as a mask.
        each: what each layer takes of its own, by the name of the argument: arrays with one entry of dim 0 for each
            layer, such as `{"key": jax.random.split(key, len(blocks))}`.
        run: calls a layer, as `run(block, x, *more, **named)`; needed where blocks are parameters, or to wrap a call,
            as in `run=lambda block, x: jax.checkpoint(block)(x)`. By default the block itself is called.
        named: more of what each layer takes, by name.

    Returns:
        What the last layer returns.

    Raises:
        ProgramError: there are no blocks, they differ, one cannot be called, or one returns other shapes or dtypes
            than it takes. All that differ are listed, with their paths.

    Example:
        >>> blocks = [{"w": jnp.full((4, 4), 0.1 * number)} for number in range(3)]
        >>> x = outlay.layers(blocks, jnp.ones((2, 4)), run=lambda block, x: jnp.tanh(x @ block["w"]))
        >>> x.shape
        (2, 4)
    """
    blocks, each = as_list(blocks), dict(each or {})
    check_blocks(blocks, each, is_called=run is None)
    if _is_scanned.get():
        return _scanned(blocks, x, more, named, each, run)
    for number, block in enumerate(blocks):
        own = jax.tree.map(lambda values, number=number: values[number], each)
        x = _called(run, block, x, more, named | own, f"blocks.{number}")
    return x


def _called(run: Any, block: Any, x: Any, more: Any, named: Any, at: str) -> Any:
    result = block(x, *more, **named) if run is None else run(block, x, *more, **named)
    check_handed_on(x, result, at)
    return result


def _scanned(blocks: Sequence[Any], x: Any, more: Any, named: Any, each: Any, run: Any) -> Any:
    """Run the layers as one scan over their stacked arrays."""
    all_leaves, (structure, *_) = zip(*map(jax.tree.flatten, blocks), strict=True)
    is_array = [is_stacked(leaf) for leaf in all_leaves[0]]
    stacks = [
        checkpoint_name(jnp.stack(same), STACKED)
        for same, stacked in zip(zip(*all_leaves, strict=True), is_array, strict=True)
        if stacked
    ]

    def layer(x: Any, of_layer: Any) -> tuple[Any, None]:
        arrays, own = iter(of_layer[0]), of_layer[1]
        leaves = [next(arrays) if stacked else leaf for leaf, stacked in zip(all_leaves[0], is_array, strict=True)]
        block = jax.tree.unflatten(structure, leaves)
        result = _called(run, block, x, more, named | own, "blocks.*")
        problems = [
            Problem("changed by its call", f"blocks.*.{path}", _CHANGED, "return what changes as part of x")
            for (path, after), before in zip(flatten_paths(block)[0], leaves, strict=True)
            if after is not before
        ]
        if problems:
            raise ProgramError("a layer that changes itself cannot run as a pipeline:", problems)
        return result, None

    return jax.lax.scan(layer, jax.tree.map(jnp.asarray, x), (stacks, each), length=len(blocks))[0]


_CHANGED = "its value is another one after the layer has run, and each microbatch would begin with the first"
