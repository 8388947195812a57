"""Bytes in the order of a layout: NumPy's strides and the tiles of XLA's documentation are the reference."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.analysis.hlo.execute.bitcast import bitcast
from outlay.analysis.hlo.hlo_module import Shape, read_shapes


def shape(text):
    (only,) = read_shapes(text)
    return only


def array(dims):
    return np.arange(np.prod(dims), dtype=np.float32).reshape(dims)


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_another_order_of_dims_reads_the_same_memory(before, after):
    dims = (2, 3, 4)
    memory = array(dims).transpose(before).reshape(-1)  # slowest dim first
    sizes = tuple(dims[dim] for dim in before)
    result_dims = tuple(sizes[after.index(dim)] for dim in range(3))
    as_text = ",".join(map(str, before[::-1]))
    result_text = ",".join(map(str, after[::-1]))
    got = bitcast(
        jnp.asarray(array(dims)),
        Shape("f32", dims, layout=as_text),
        Shape("f32", result_dims, layout=result_text),
    )
    slowest_first = [result_dims[dim] for dim in after]
    want = memory.reshape(slowest_first).transpose(np.argsort(after))
    np.testing.assert_array_equal(got, want)


def test_tiles_are_those_of_the_documentation():
    # F32[3,5] in tiles of 2x2: padded to 4x6, six tiles, entries of a tile side by side.
    memory = np.pad(array((3, 5)), ((0, 1), (0, 1))).reshape(2, 2, 3, 2).transpose(0, 2, 1, 3).reshape(-1)
    got = bitcast(jnp.asarray(array((3, 5))), shape("f32[3,5]{1,0:T(2,2)}"), shape("f32[24]{0:T(24)}"))
    np.testing.assert_array_equal(got, memory)
    back = bitcast(got, shape("f32[24]{0:T(24)}"), shape("f32[3,5]{1,0:T(2,2)}"))
    np.testing.assert_array_equal(back, array((3, 5)))


@pytest.mark.parametrize("after", ["bf16[4,16]{1,0:T(8,128)(2,1)}", "bf16[16,4]{0,1:T(8,128)(2,1)}"])
def test_tiles_within_tiles(after):
    before = shape("bf16[4,16]{1,0:T(8,128)(2,1)}")
    values = jnp.asarray(array((4, 16)), jnp.bfloat16)
    got = bitcast(values, before, shape(after))
    want = values if after.startswith("bf16[4,16]") else values.T
    np.testing.assert_array_equal(got, want)


def test_other_types_of_the_same_bytes():
    values = jnp.asarray(array((2, 4)))
    got = bitcast(values, shape("f32[2,4]{1,0}"), shape("u16[2,8]{1,0}"))
    np.testing.assert_array_equal(got, np.asarray(values).view(np.uint16))


def test_other_numbers_of_bytes_are_refused():
    with pytest.raises(ValueError, match=r"f32\[2, 4\] and f32\[2, 5\] differ in bytes"):
        bitcast(jnp.asarray(array((2, 4))), shape("f32[2,4]{1,0}"), shape("f32[2,5]{1,0}"))
