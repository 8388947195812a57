"""Slabs: together they hold every element, and none is larger than asked."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.arrays.sharding_blocks import blocks, cut

SPECS = st.sampled_from([P("a", "b"), P("b", "a"), P(("a", "b")), P(None, "a"), P()])


@pytest.mark.compiles
@given(SPECS, st.integers(1, 5), st.integers(1, 5), st.integers(8, 4000))
def test_the_slabs_of_an_array_make_the_array(spec: P, rows: int, columns: int, most_bytes: int) -> None:
    shape = (8 * rows, 8 * columns)
    whole = np.arange(64 * rows * columns, dtype=np.int32).reshape(shape)
    held = list(blocks(shape, NamedSharding(outlay.mesh(a=4, b=2), spec)))
    slabs = cut(shape, whole.dtype, held[0], most_bytes)
    made = np.full_like(whole, -1)
    for start in slabs.starts:
        slab = np.full(slabs.shape, -1, np.int32)
        for block in held:
            slab[slabs.in_slab(block)] = whole[slabs.in_array(block, start)]
        assert (slab >= 0).all()
        for block in held:
            made[slabs.in_array(block, start)] = slab[slabs.in_slab(block)]
    np.testing.assert_array_equal(made, whole)
    one_row = whole.nbytes // max(slabs.local_shape)
    assert 4 * np.prod(slabs.shape) <= max(most_bytes, one_row)


def test_small_arrays_are_one_slab() -> None:
    for shape in ((), (0, 3), (8,)):
        held = list(blocks(shape, NamedSharding(outlay.mesh(x=8), P())))
        assert cut(shape, "float32", held[0], 100).starts == (0,)


def test_a_slab_takes_the_same_rows_of_every_block() -> None:
    held = list(blocks((16,), NamedSharding(outlay.mesh(x=2, devices=jax.devices()[:2]), P("x"))))
    slabs = cut((16,), "int8", held[0], 6)
    assert [[slabs.in_array(block, start)[0] for block in held] for start in slabs.starts] == [
        [slice(0, 3), slice(8, 11)],
        [slice(3, 6), slice(11, 14)],
        [slice(5, 8), slice(13, 16)],
    ]
