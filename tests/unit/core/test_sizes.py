import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlay.core.array_leaves import num_bits, num_bytes
from outlay.core.quantities import format_bytes

WHOLE_BYTES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bfloat16", "float16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz",
]  # fmt: skip
SUB_BYTE = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
SHAPE = st.lists(st.integers(0, 7), max_size=4).map(tuple)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(SHAPE, st.sampled_from(WHOLE_BYTES))
def test_bytes_agree_with_numpy(shape, dtype):
    array = np.zeros(shape, jnp.dtype(dtype))
    assert num_bytes(shape, dtype) == num_bytes(shape, array.dtype) == array.nbytes


@given(SHAPE, st.sampled_from(sorted(SUB_BYTE)))
@example((3,), "int4")
def test_dtypes_smaller_than_a_byte_are_packed(shape, dtype):
    bits = SUB_BYTE[dtype]
    assert num_bits(getattr(ml_dtypes, dtype)) == num_bits(dtype) == bits
    assert num_bytes(shape, dtype) == (int(np.prod(shape)) * bits + 7) // 8


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_typed_key_counts_its_key_data(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    data = jax.random.key_data(keys)
    assert num_bytes(keys.shape, keys.dtype) == num_bytes(keys.shape, str(keys.dtype)) == data.nbytes


def test_the_gradient_of_an_integer_has_no_bytes():
    assert num_bytes((3,), jax.dtypes.float0) == 0


def size_of(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * UNITS[unit]


@given(st.integers(0, 2**52), st.integers(0, 2**52))
@example(2**20 - 1, 2**20)
@example(1023, 1024)
def test_more_bytes_are_never_written_as_fewer(one, other):
    less, more = sorted((one, other))
    assert size_of(format_bytes(less)) <= size_of(format_bytes(more))


@given(st.integers(0, 2**52))
@example(2**20 - 1)
@example(2**30 - 1)
def test_written_bytes_are_right_to_a_twentieth_and_below_the_next_unit(count):
    text = format_bytes(count)
    assert re.fullmatch(r"\d{1,4}(\.\d)? (B|KiB|MiB|GiB|TiB)", text)
    assert abs(size_of(text) - count) <= 0.05 * max(count, 1)
    assert count >= 2**50 or float(text.split(" ")[0]) < 1024


def test_negative_bytes_keep_their_sign():
    assert format_bytes(-1536) == "-1.5 KiB"
