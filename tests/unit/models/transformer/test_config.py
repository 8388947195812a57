import dataclasses
import math

import jax
import pytest

from outlay.core.paths import flatten_paths
from outlay.models.transformer.config import SIZES, TransformerConfig
from outlay.models.transformer.language_model import language_model


@pytest.mark.parametrize("size", SIZES)
def test_the_parameters_are_counted_exactly_and_none_is_made(size):
    """70 billion of them would take 280 GB."""
    shapes = jax.eval_shape(language_model(SIZES[size])[0], jax.eval_shape(lambda: jax.random.key(0)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == SIZES[size].num_params


def test_the_large_sizes_are_those_that_were_published():
    """Llama 3.2 1B, and Llama 3 8B and 70B."""
    published = {"1b": 1_235_814_400, "8b": 8_030_261_248, "70b": 70_553_706_496}
    assert {size: SIZES[size].num_params for size in published} == published
    assert SIZES["3b"].num_params == 3_606_752_256


@pytest.mark.parametrize("size", SIZES)
def test_layouts_can_halve_every_size_again_and_again(size):
    config = SIZES[size]
    for dim in (config.vocabulary, config.width, config.hidden):
        assert dim % 128 == 0
    assert config.num_kv_heads % 4 == 0


def test_each_layer_is_a_slice_of_stacked_parameters():
    config = SIZES["70b"]
    shapes = jax.eval_shape(language_model(config)[0], jax.eval_shape(lambda: jax.random.key(0)))
    assert {path: leaf.shape for path, leaf in flatten_paths(shapes)[0]} == {
        "embedding.embedding": (128_256, 8192),
        "head.kernel": (8192, 128_256),
        "layers.attention.key.kernel": (80, 8192, 8, 128),
        "layers.attention.output.kernel": (80, 64, 128, 8192),
        "layers.attention.query.kernel": (80, 8192, 64, 128),
        "layers.attention.value.kernel": (80, 8192, 8, 128),
        "layers.attention_norm.scale": (80, 8192),
        "layers.feed_forward.down.kernel": (80, 28_672, 8192),
        "layers.feed_forward.gate.kernel": (80, 8192, 28_672),
        "layers.feed_forward.up.kernel": (80, 8192, 28_672),
        "layers.feed_forward_norm.scale": (80, 8192),
        "norm.scale": (8192,),
    }


def test_dims_that_cannot_be_are_all_named():
    with pytest.raises(ValueError, match="cannot be built") as error:
        dataclasses.replace(SIZES["tiny"], num_kv_heads=3, head_dim=5, dtype="float8")
    for expected in (
        "8 query heads cannot share 3 key and value heads evenly: make num_heads a multiple of num_kv_heads",
        "head_dim=5 is odd, and rotary embeddings turn pairs: make it even",
        "dtype='float8' is not one of float32, bfloat16",
    ):
        assert expected in str(error.value)


def test_a_tied_model_has_no_head():
    untied = TransformerConfig(64, 16, 2, 4, 2, 4, 32)
    assert untied.num_params - dataclasses.replace(untied, tied=True).num_params == 64 * 16
