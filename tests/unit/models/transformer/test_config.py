import dataclasses
import math

import jax
import pytest

from outlay.core.paths import flatten_paths
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.language_model import language_model
from outlay.models.transformer.published import MODELS

TINY = MODELS["tiny"].config


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("name", ["tiny", "llama3-70b", "llama3.2-1b", "mpt-7b", "maxtext-16b"])
@pytest.mark.parametrize("other", [{}, {"biases": True}, {"norm": "layer", "gated": False}])
def test_the_parameters_are_counted_exactly_and_none_is_made(name, other):
    """70 billion of them would take 280 GB."""
    config = dataclasses.replace(MODELS[name].config, **other)
    shapes = jax.eval_shape(language_model(config)[0], jax.eval_shape(lambda: jax.random.key(0)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == config.num_params


def test_the_models_have_as_many_parameters_as_was_published():
    """In millions, as the models' cards and papers print them; of the first four and MPT-7B to the last one."""
    exact = {
        "llama2-7b": 6_738_415_616,
        "llama3-8b": 8_030_261_248,
        "llama3-70b": 70_553_706_496,
        "llama3.2-1b": 1_235_814_400,
        "mpt-7b": 6_658_859_008,
    }
    assert {name: MODELS[name].config.num_params for name in exact} == exact
    millions = {
        "llama3-405b": 405_853,
        "llama3.2-3b": 3_213,
        "nanotron-1b": 1_110,
        "mpt-125m": 125,
        "mpt-30b": 29_975,
        "megatron-1.7b": 1_652,
        "megatron-22b": 22_074,
        "megatron-145b": 145_622,
        "megatron-1t": 1_008_039,
        "gpt-neox-20b": 20_555,
        "maxtext-16b": 16_442,
        "maxtext-128b": 129_521,
    }
    assert {name: round(MODELS[name].config.num_params / 1e6) for name in millions} == millions


def test_every_model_says_where_its_dims_are_from():
    assert all(model.source for model in MODELS.values())


def test_each_layer_is_a_slice_of_stacked_parameters():
    config = MODELS["llama3-70b"].config
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


def test_all_impossible_settings_are_named():
    with pytest.raises(ValueError, match="cannot be built") as error:
        dataclasses.replace(
            TINY, num_kv_heads=3, head_dim=5, hidden=0, window=0, dtype="float8", norm="batch", remat="up,kesy"
        )
    assert str(error.value).splitlines()[1:] == [
        "  hidden=0: make it 1 or more",
        "  window=0: a token sees itself, so make it 1 or more",
        "  8 query heads cannot share 3 key and value heads evenly: make num_heads a multiple of num_kv_heads",
        "  head_dim=5 is odd, and rotary embeddings turn pairs: make it even",
        "  norm='batch' is not one of rms, layer",
        "  dtype='float8' is not one of float32, bfloat16",
        "  remat names a value 'kesy' that no layer has: did you mean 'keys'?",
    ]


def test_a_tied_model_has_no_head():
    untied = TransformerConfig(64, 16, 2, 4, 2, 4, 32)
    assert untied.num_params - dataclasses.replace(untied, tied=True).num_params == 64 * 16
