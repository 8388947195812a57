"""Arrays survive being packed into words, and spikes take two bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.graph.subgraph import num_words, pack, unpack


@pytest.mark.compiles
@pytest.mark.parametrize("shape", [(), (1,), (16,), (17,), (3, 5), (2, 33)])
@pytest.mark.parametrize("dtype", ["int8", "bool", "uint8", "float16", "bfloat16", "float32", "int32"])
def test_what_is_packed_comes_back(shape, dtype):
    rng = np.random.default_rng(0)
    values = rng.integers(-1, 2, shape) if dtype == "int8" else rng.normal(size=shape) * 100
    x = jnp.asarray(values).astype(dtype)
    words = pack(x)
    assert words.dtype == jnp.uint32
    assert words.shape == (num_words(jax.ShapeDtypeStruct(x.shape, x.dtype)),)
    back = unpack(words, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(back), np.asarray(x))


def test_sixteen_spikes_are_a_word():
    assert num_words(jax.ShapeDtypeStruct((256,), jnp.int8)) == 16
