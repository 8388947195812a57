"""Arrays survive being packed into words, and spikes take two bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.graph.subgraph import num_words, pack, unpack

SHAPES = [(), (1,), (16,), (17,), (3, 5), (2, 33)]


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint8", "float16", "bfloat16", "float32", "int32"])
def test_what_is_packed_comes_back(dtype):
    rng = np.random.default_rng(0)
    values = [rng.integers(-1, 2, s) if dtype == "int8" else rng.normal(size=s) * 100 for s in SHAPES]
    arrays = [jnp.asarray(value).astype(dtype) for value in values]

    @jax.jit  # one program for all shapes
    def there_and_back(arrays):
        words = [pack(x) for x in arrays]
        return words, [unpack(*both) for both in zip(words, map(jax.typeof, arrays), strict=True)]

    words, back = there_and_back(arrays)
    assert [(w.dtype, w.shape) for w in words] == [(jnp.uint32, (num_words(jax.typeof(x)),)) for x in arrays]
    assert [x.dtype for x in back] == [x.dtype for x in arrays]
    for got, right in zip(back, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(right))


def test_sixteen_spikes_are_a_word():
    assert num_words(jax.ShapeDtypeStruct((256,), jnp.int8)) == 16
