"""Arrays survive being packed into words: each bit of them, or two bits an entry where the part says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.core.error_types import ProgramError
from outlay.graph.encoding import num_words, pack, unpack
from outlay.graph.step_graph import Part

SHAPES = [(), (1,), (16,), (17,), (3, 5), (2, 33)]
WHOLE = ["int8", "bool", "uint8", "float16", "bfloat16", "float32", "int32", "complex64", "int4", "uint4"]


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    ("dtype", "encoding"), [*((dtype, "whole") for dtype in WHOLE), ("int8", "ternary"), ("int32", "ternary")]
)
def test_what_is_packed_comes_back(dtype, encoding):
    rng = np.random.default_rng(0)
    bound = 1 if encoding == "ternary" else 100
    values = [
        rng.integers(-bound, bound + 1, s) + (1j * rng.normal(size=s) if dtype == "complex64" else 0) for s in SHAPES
    ]
    arrays = [jnp.asarray(value).astype(dtype) for value in values]

    @jax.jit  # one program for all shapes
    def there_and_back(arrays):
        words = [pack(x, encoding) for x in arrays]
        return words, [unpack(*both, encoding) for both in zip(words, map(jax.typeof, arrays), strict=True)]

    words, back = there_and_back(arrays)
    sizes = [(num_words(jax.typeof(x), encoding),) for x in arrays]
    assert [(w.dtype, w.shape) for w in words] == [(jnp.uint32, size) for size in sizes]
    assert [x.dtype for x in back] == [x.dtype for x in arrays]
    for got, right in zip(back, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(right))


def test_two_bits_are_taken_where_a_part_says_so_whatever_the_dtype():
    octets = jax.ShapeDtypeStruct((256,), jnp.int8)
    assert (num_words(octets, "ternary"), num_words(octets)) == (16, 64)


def test_an_encoding_that_does_not_fit_is_refused():
    with pytest.raises(ProgramError, match='an output of uint8 is encoded as "ternary"'):
        pack(jnp.ones(4, "uint8"), "ternary")
    with pytest.raises(ProgramError, match=r"no encoding for out: 'two bits'\n  fix: one of 'whole', 'ternary'"):
        Part(lambda state, read: (state, {}), encodings={"out": "two bits"})
