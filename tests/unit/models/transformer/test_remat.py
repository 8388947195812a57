"""Policies of rematerialization by the names of others: what of a layer is saved, counted from its shapes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from outlay.models.transformer.config import TransformerConfig, remat_of
from outlay.models.transformer.language_model import language_model
from outlay.models.transformer.published import MODELS

LAYERS, BATCH, LENGTH, WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 3, 2, 16, 24, 4, 2, 8, 40
CONFIG = TransformerConfig(11, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, dtype="float32", positions="none")
SIZES = {
    "query": HEADS * HEAD_DIM,
    "key": KV_HEADS * HEAD_DIM,
    "value": KV_HEADS * HEAD_DIM,
    "context": HEADS * HEAD_DIM,
    "out": WIDTH,
    "wi_0": HIDDEN,
    "wi_1": HIDDEN,
    "wo": WIDTH,
}
"""The features of a token that each product of a layer has."""


def num_saved(remat):
    """Count the numbers that all layers together save for the backward pass, per token."""
    config = dataclasses.replace(CONFIG, remat=remat)
    init, loss = language_model(config)
    params = jax.eval_shape(init, jax.random.key(0))
    batch = {"tokens": jnp.zeros((BATCH, LENGTH), jnp.int32)}
    _, pullback = jax.eval_shape(lambda params: jax.vjp(lambda p: loss(p, batch, None)[0].sum(), params), params)
    stacked = [leaf.shape for leaf in jax.tree.leaves(pullback) if leaf.shape[:3] == (LAYERS, BATCH, LENGTH)]
    return sum(math.prod(shape[3:]) for shape in stacked)


@pytest.mark.parametrize(
    ("remat", "products"),
    [
        ("minimal", "query key value out wi_0 wi_1 wo"),
        ("minimal_with_context", "query key value context out wi_0 wi_1 wo"),
        ("save_dot_with_context_except_mlp", "query key value context out"),
        ("save_dot_except_mlpwi", "query key value out wo"),
        ("save_dot_except_mlp", "query key value out"),
        ("save_qkv_proj", "query key value"),
        ("save_out_proj", "out"),
        ("op", "query value context wi_0 wo"),
    ],
)
def test_a_policy_of_others_saves_the_products_that_theirs_saves(remat, products):
    in_addition = num_saved(remat) - num_saved("full")
    # The last product of a branch is not needed again where nothing of its sum is: JAX leaves out what nobody reads.
    expected = {name: SIZES[name] for name in products.split()}
    assert in_addition in {sum(expected.values()), sum(expected.values()) - expected.get("wo", 0)}


def test_megatrons_selective_recomputation_is_that_of_attention():
    assert remat_of("selective") == remat_of("core_attn") == "attention"
    assert num_saved("selective") == num_saved("attention")


@pytest.mark.parametrize(
    ("remat", "message"),
    [
        ("fulll", "remat='fulll' is neither a policy nor a value of a layer: did you mean 'full'"),
        ("save_qkv_projs", "did you mean 'save_qkv_proj'"),
        ("minimal_with_contexts_2", "did you mean 'minimal_with_context'"),
        ("qkv_proj_offloaded", r"rules to say: \(\"\*\*.queries\", outlay.layout.on_host\(\)\), "),
    ],
)
def test_a_policy_that_is_none_is_answered_with_the_nearest(remat, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MODELS["tiny"].config, remat=remat)
