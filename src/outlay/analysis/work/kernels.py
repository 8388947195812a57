"""What the kernels of libraries and users compute: fused attention by its mask, others by their author's word.

A kernel of its own is one call to the compiler, which knows its operands and nothing of what it does with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from outlay.analysis.hlo.hlo_module import Instruction, Shape

FORWARD, BACKWARD = 2, 5
"""Matrix products of fused attention: scores and mixed values; and backward the scores again, and four gradients."""

TRACED_ATTENTION = {"dot_product_attention_fwd_wrapper": FORWARD, "dot_product_attention_bwd_wrapper": BACKWARD}
"""The operations of JAX that are cuDNN's attention, and how many products each is."""


def num_visible(num_queries: int, num_keys: int, *, causal: bool, window: int | None = None) -> int:
    """How many pairs of a query and a key see each other.

    >>> num_visible(4, 4, causal=False), num_visible(4, 4, causal=True), num_visible(4, 4, causal=True, window=2)
    (16, 10, 7)
    """
    if not causal:
        return num_queries * num_keys
    sides = (min(query + 1, num_keys, window or num_keys) for query in range(num_queries))
    return sum(sides)


def cudnn_attention_flops(target: str, config: Mapping[str, Any], operands: Sequence[Shape]) -> float | None:
    """The FLOPs of a call of cuDNN's attention, without what its mask hides; None where the call does not tell.

    Args:
        target: the name of what is called.
        config: its configuration.
        operands: the shapes of its operands, queries first.
    """
    found = config.get("cudnn_fmha_backend_config", {})
    scores = [int(dim) for dim in found.get("intermediate_tensor_shape", {}).get("dimensions", ())]
    if len(scores) != 4 or not operands:
        return None
    batch, heads, num_queries, num_keys = scores
    causal, window = "CAUSAL" in found.get("mask_type", ""), int(found.get("sliding_window_length", 0)) or None
    seen = num_visible(num_queries, num_keys, causal=causal or window is not None, window=window)
    products = BACKWARD if "Backward" in target else FORWARD
    return 2.0 * products * batch * heads * seen * operands[0].dims[-1]


def told_flops(instruction: Instruction) -> float | None:
    """The FLOPs that the author of a kernel told the compiler (`cost_estimate` of Pallas); None where there is no word.

    Args:
        instruction: a custom call.
    """
    try:
        config = json.loads(instruction.attributes.get("backend_config", ""))
        return float(config["custom_call_config"]["cost_estimate"]["flops"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def traced_attention_flops(eqn: JaxprEqn) -> float:
    """The FLOPs of cuDNN's attention in a traced program, where it is still one operation on whole arrays."""
    operands: Any = eqn.invars
    (batch, num_queries, heads, dim), num_keys = operands[0].aval.shape, operands[1].aval.shape[1]
    window = eqn.params["sliding_window_length"]
    causal = "CAUSAL" in str(eqn.params["mask_type"]) or window is not None
    seen = num_visible(num_queries, num_keys, causal=causal, window=window)
    return 2.0 * TRACED_ATTENTION[eqn.primitive.name] * batch * heads * seen * dim
