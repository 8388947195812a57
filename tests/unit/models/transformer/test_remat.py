"""Policies of rematerialization by the names of others: what of a layer is saved, counted from its shapes."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.models.transformer.config import TransformerConfig, remat_of
from outlay.models.transformer.language_model import language_model
from outlay.models.transformer.published import MODELS
from outlay.recipes.find import find_recipe

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


STAGES = 7


def num_saved(remat, *, in_stages=False):
    """Count the numbers that all layers together save for the backward pass, per token, and per stage if mapped."""
    config = dataclasses.replace(CONFIG, remat=remat)
    init, loss = language_model(config)
    params = jax.eval_shape(init, jax.random.key(0))
    batch = {"tokens": jnp.zeros((BATCH, LENGTH), jnp.int32)}

    def total(params):
        return loss(params, batch, None)[0].sum()

    if in_stages:  # as a pipeline maps a layer over its stages
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((STAGES, *leaf.shape), leaf.dtype), params)
    run = jax.vmap(total) if in_stages else total
    _, pullback = jax.eval_shape(lambda params: jax.vjp(lambda p: run(p).sum(), params), params)
    shapes = [tuple(size for size in leaf.shape if size != STAGES) for leaf in jax.tree.leaves(pullback)]
    return sum(math.prod(shape[3:]) for shape in shapes if shape[:3] == (LAYERS, BATCH, LENGTH))


@pytest.mark.parametrize("remat", ["products", "full"])
def test_stages_of_a_pipeline_save_what_one_device_saves(remat):
    assert num_saved(remat, in_stages=True) == num_saved(remat)


@pytest.mark.some_cases(3)
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
        ("mlp", "query key value context out"),  # Megatron's recompute-modules
        ("core_attn,mlp", "query key value out"),
    ],
)
def test_a_policy_of_others_saves_the_products_that_theirs_saves(remat, products):
    in_addition = num_saved(remat) - num_saved("full")
    # The last product of a branch is not needed again where nothing of its sum is: JAX leaves out what nobody reads.
    expected = {name: SIZES[name] for name in products.split()}
    assert in_addition in {sum(expected.values()), sum(expected.values()) - expected.get("wo", 0)}


@pytest.mark.thorough  # policies of others are above
def test_megatrons_selective_recomputation_is_that_of_attention():
    assert remat_of("selective") == remat_of("core_attn") == remat_of("layernorm,core_attn") == "attention"
    assert num_saved("selective") == num_saved("attention")


def gradient_of(remat):
    """The gradient of a mean loss, as a function, and where it is taken."""
    init, loss = language_model(dataclasses.replace(CONFIG, remat=remat))
    batch = {"tokens": jnp.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 11}
    return jax.grad(lambda params: loss(params, batch, None)[0].mean()), jax.jit(init)(jax.random.key(0))


@functools.cache
def plain_gradient():
    gradient, params = gradient_of("none")
    return jax.jit(gradient)(params)


def check_gradient(gradient, params):
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, jax.jit(gradient)(params), plain_gradient())


def test_one_of_several_layers_is_recomputed_by_itself():
    gradient, params = gradient_of("layer:3")
    check_gradient(gradient, params)
    num_plain, num_recomputed = (
        str(jax.make_jaxpr(each)(params)).count("policy=") for each in (gradient_of("none")[0], gradient)
    )
    assert num_plain < num_recomputed
    assert num_saved("layer") == num_saved("full")


def test_a_budget_of_memory_is_kept_and_never_keeps_less_than_a_smaller_one():
    least, most = num_saved("full"), num_saved("none")
    shares = [0.0, 0.2, 0.45, 0.7, 1.0]
    measured = [(num_saved(f"memory_budget:{share}") - least) / (most - least) for share in shares]
    assert measured == sorted(measured)
    assert (measured[0], measured[-1]) == (0, 1)
    assert len({*measured}) == len(shares)
    assert all(one <= share + 0.01 for one, share in zip(measured, shares, strict=True))
    assert measured[3] > 0.45


def test_what_a_budget_keeps_saves_most_products_and_changes_no_gradient():
    gradient, params = gradient_of("memory_budget:0.45")
    check_gradient(gradient, params)
    again, few, all_of_it = (
        str(jax.make_jaxpr(gradient_of(remat)[0])(params)).count("dot_general")
        for remat in ("memory_budget:0", "memory_budget:0.45", "memory_budget:1")
    )
    assert again > few > all_of_it


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("remat", "products"),
    [
        ("qkv_proj_offloaded", "query key value"),
        ("minimal_offloaded", "query key value out wi_0 wi_1 wo"),
        ("query_proj=offload,mlpwi_0=remat,context=device", "query"),
    ],
)
def test_what_others_keep_in_the_memory_of_the_host_goes_there(remat, products):
    gradient, params = gradient_of(remat)
    stacked = re.findall(rf"\w+:f32<host>\[{LAYERS},{BATCH},{LENGTH}", str(jax.make_jaxpr(gradient)(params)))
    expected = len(products.split())  # of which the last product of a branch may not be needed again
    assert len(stacked) in {expected, expected - products.count("wo")}


def test_the_input_of_a_layer_that_goes_to_the_host_is_not_on_the_device_too():
    """Unless it has a name inside the layer, it is what the scan over layers saves by itself."""
    gradient, params = gradient_of("decoder_layer_input=offload")
    check_gradient(*gradient_of("decoder_layer_input=device"))
    saved = re.findall(rf"f32(<host>)?\[{LAYERS},{BATCH},{LENGTH},{WIDTH}\]", str(jax.make_jaxpr(gradient)(params)))
    assert set(saved) == {"<host>"}


def test_on_tpus_that_are_not_here_a_policy_that_saves_attention_saves_no_copy_of_its_inputs():
    """The kernel takes heads before tokens; in that order only its output is saved, beside the arguments."""
    mesh, heads = outlay.mesh(data=8, target="tpu-v5e:2x4"), jax.ShapeDtypeStruct((8, 256, 4, 64), jnp.bfloat16)

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("attention"))
    def mixed(*heads):
        return outlay.attention(*(jnp.sin(one) for one in heads), causal=True, split=P("data"))

    with jax.set_mesh(mesh):
        saved = jax.tree.leaves(jax.eval_shape(lambda *xs: jax.vjp(mixed, *xs)[1], heads, heads, heads))
    assert sorted(leaf.shape for leaf in saved if leaf.size == heads.size) == [(8, 4, 256, 64), *[heads.shape] * 3]


@pytest.mark.compiles
def test_what_is_saved_of_a_branch_is_split_as_the_residual_stream_is():
    """Under sequence parallelism a device keeps the output of its own tokens: half of them on two devices."""
    sizes = {"--layers": 3, "--width": 64, "--sequence": 32, "--batch": 8}
    words = [str(word) for pair in sizes.items() for word in pair]
    recipe = find_recipe("lm", ["--model", "tiny", "--remat", "output,down", *words])
    layout, mesh = recipe.layouts["fsdp+tp+sp"], outlay.mesh(data=4, model=2)
    program = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=mesh)
    assert set(re.findall(r"f32\[3,2,(\d+),64\]", program.compiled.as_text())) == {"16"}


@pytest.mark.parametrize(
    ("remat", "message"),
    [
        ("fulll", "remat='fulll' is neither a policy nor a value of a layer: did you mean 'full'"),
        ("save_qkv_projs", "did you mean 'save_qkv_proj'"),
        ("minimal_with_contexts_2", "did you mean 'minimal_with_context'"),
        ("minimal_offload", "did you mean 'minimal_offloaded'"),
        ("query_prj=offload", "remat names a value 'query_prj' that no layer has: did you mean 'query_proj'"),
        ("queries=ofload,up", "remat keeps 'queries' in 'ofload': did you mean 'offload'"),
        ("memory_budget:1.5", r"remat='memory_budget:1.5': a budget is a number from 0 \(full\) to 1 \(none\)"),
        ("memory_budget:nan", "written memory_budget:0.5"),
        ("memory_budget:-0.1", "written memory_budget:0.5"),
        ("budget=0.5", "written memory_budget:0.5"),
        ("layer_norm", "did you mean 'layernorm'"),
        ("memory_budge", "did you mean 'memory_budget:0.5'"),
        ("layer:3", "remat='layer:3' recomputes one of 3 layers, which do not divide 4"),
    ],
)
def test_a_policy_that_is_none_is_answered_with_the_nearest(remat, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MODELS["tiny"].config, remat=remat)
