"""What cuDNN's fused attention computes, forward and backward, as plain scores, softmax and mixed values."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.execute.operation import Meanings, Operation

_MASKS = ("NO_MASK", "CAUSAL")


def _configuration(operation: Operation) -> Mapping[str, Any]:
    config = json.loads(operation.instruction.attributes["backend_config"])["cudnn_fmha_backend_config"]
    odd = {
        "a mask by lengths": config.get("mask_type", "NO_MASK") not in _MASKS,
        "dropout": float(config.get("dropout_rate", 0)) > 0,
        "packed segments": int(config.get("max_seg_per_batch", 1)) > 1,
        "pages": bool(config.get("is_paged_attention")),
    }
    if named := [name for name, is_there in odd.items() if is_there]:
        raise ValueError(f"cuDNN's attention with {', '.join(named)} has no meaning here")
    return config


def _attend(config: Mapping[str, Any], query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Return mixed values (B, heads, T, dim) and the logarithm of each softmax's sum (B, heads, T).

    Queries are (B, T, heads, dim); keys and values have S rows and may have fewer heads, each for several of queries.
    """
    num_shared = query.shape[2] // key.shape[2]
    query, key, value = (jnp.swapaxes(x.astype(jnp.float32), 1, 2) for x in (query, key, value))
    key, value = (jnp.repeat(x, num_shared, axis=1) for x in (key, value))
    scores = jnp.einsum("bntd,bnsd->bnts", query, key) * float(config["fmha_scale"])
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, dim) for dim in (2, 3))
    hidden = jnp.zeros(scores.shape, bool)
    window = int(config.get("sliding_window_length", 0))
    if config.get("mask_type") == "CAUSAL" or window:
        hidden |= columns > rows
    if window:
        hidden |= columns <= rows - window
    scores = jnp.where(hidden, -jnp.inf, scores)
    sums = jax.nn.logsumexp(scores, axis=-1)
    return jnp.einsum("bnts,bnsd->bntd", jnp.exp(scores - sums[..., None]), value), sums


def _forward(operation: Operation) -> Any:
    return _as_shapes(operation, _attend(_configuration(operation), *operation.operands[:3]))


def _backward(operation: Operation) -> Any:
    """Return the gradients of queries, keys and values, from these and the gradient of the mixed values."""
    config = _configuration(operation)
    query, key, value, _, gradient = operation.operands[:5]
    mixed = functools.partial(_attend, config)
    _, pull_back = jax.vjp(lambda *arrays: mixed(*arrays)[0], *(x.astype(jnp.float32) for x in (query, key, value)))
    gradients = pull_back(jnp.swapaxes(gradient.astype(jnp.float32), 1, 2))
    return _as_shapes(operation, [jnp.swapaxes(one, 1, 2) for one in gradients])


def _as_shapes(operation: Operation, values: Any) -> Any:
    """Return the values in the types of the results, and the memory that the library works in as zeros."""
    shapes = operation.instruction.shapes
    results = [value.astype(dtype_of(shape.dtype)) for value, shape in zip(values, shapes, strict=False)][: len(shapes)]
    spare = [jnp.zeros(shape.dims, dtype_of(shape.dtype)) for shape in shapes[len(results) :]]
    # Without a gradient to come, the sums are left out of the results.
    if len(shapes) > 1 and shapes[1].dtype == "u8":
        results, spare = results[:1], [jnp.zeros(shapes[1].dims, jnp.uint8)]
    return (*results, *spare)


ATTENTION_CALLS: Meanings = {"__cudnn$fmhaSoftmax": _forward, "__cudnn$fmhaSoftmaxBackward": _backward}
