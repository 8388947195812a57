"""What the backward pass of a transformer recomputes, by the words of this package and of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from outlay.core.suggest import did_you_mean

REMATS = ("none", "full", "attention", "products")
"""The rematerialization policies, besides names of `KEPT`; see `TransformerConfig.remat`."""

KEPT = (
    *("branch_input", "queries", "keys", "values", "attention", "output", "branch_output", "residual"),
    *("gate", "up", "down"),
)
"""The values of a layer that `remat` can save by name."""

_PRODUCTS = "queries,keys,values,output,gate,up,down"
ELSEWHERE = {
    # MaxText's remat_policy, by what its decoders save.
    "minimal": _PRODUCTS,
    "minimal_with_context": f"{_PRODUCTS},attention",
    "minimal_flash": f"{_PRODUCTS},attention",
    "save_dot_with_context_except_mlp": "queries,keys,values,attention,output",
    "save_dot_except_mlpwi": "queries,keys,values,output,down",
    "save_dot_except_mlp": "queries,keys,values,output",
    "save_qkv_proj": "queries,keys,values",
    "save_out_proj": "output",
    # torchtitan's selective_ac_option: attention, and every second of the products of a layer.
    "op": "queries,values,attention,gate,down",
    # Megatron's recompute-granularity and recompute-modules.
    "selective": "attention",
    "core_attn": "attention",
}
"""Policies by the names that MaxText, torchtitan and Megatron give them, and what they are called here."""

_BY_RULES = {
    "minimal_offloaded": _PRODUCTS,
    "qkv_proj_offloaded": "queries,keys,values",
}


def remat_of(remat: str) -> str:
    """Return a policy by the words of this package.

    >>> remat_of("save_qkv_proj"), remat_of("full")
    ('queries,keys,values', 'full')
    """
    return ELSEWHERE.get(remat, remat)


def remat_problems(remat: str) -> list[str]:
    """List the problems of a `TransformerConfig.remat`.

    >>> remat_problems("queries,kesy")
    ["remat names a value 'kesy' that no layer has: did you mean 'keys'?"]
    """
    if remat in REMATS or remat in ELSEWHERE:
        return []
    if remat in _BY_RULES:
        rules = ", ".join(f'("**.{each}", outlay.layout.on_host())' for each in _BY_RULES[remat].split(","))
        return [f"remat={remat!r} keeps values in the host's memory, which is for rules to say: {rules}"]
    names = remat.split(",")
    if len(names) == 1 and remat not in KEPT:
        known = did_you_mean(remat, [*REMATS, *KEPT, *ELSEWHERE])
        return [f"remat={remat!r} is neither a policy nor a value of a layer: {known}"]
    wrong = [name for name in names if name not in KEPT]
    return [f"remat names a value {name!r} that no layer has: {did_you_mean(name, KEPT)}" for name in wrong]


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
        # The products of attention have batch dims, which the policy for products recomputes, so save them by name.
        mixed = policies.save_only_these_names("attention")
        policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, mixed)
    else:
        policy = policies.save_only_these_names(*remat.split(","))
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)
