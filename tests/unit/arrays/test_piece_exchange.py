"""Slabs that travel between devices in rounds; between processes, see `tests/multiprocess/test_global_arrays.py`."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.arrays.piece_exchange import Slab, exchanged, rounds

NUMBERS = st.integers(0, 7)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from([2, 3])), max_size=20))
def test_every_slab_travels_once_and_a_device_sends_and_receives_one_at_a_time(given_slabs):
    devices = jax.devices()
    slabs = [Slab(devices[a], devices[b], ((0, rows), (0, 4))) for a, b, rows in given_slabs]
    travelled = rounds(slabs)
    assert Counter(slab for one in travelled for slab in one) == Counter(slabs)
    for one in travelled:
        assert len({slab.bounds for slab in one}) == 1
        assert len({slab.source for slab in one}) == len({slab.device for slab in one}) == len(one)


@pytest.mark.newest
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8"])
def test_what_arrives_is_what_was_sent(dtype):
    devices = jax.devices()[:4]
    values = np.arange(24).reshape(6, 4) % 5
    slabs = [Slab(devices[0], devices[2], ((0, 2), (0, 4))), Slab(devices[2], devices[3], ((4, 6), (0, 4)))]

    def read(slab: Slab) -> jax.Array:
        (start, stop), _ = slab.bounds
        return jax.device_put(jnp.asarray(values[start:stop], dtype), slab.source)

    arrived = dict(exchanged(slabs, np.dtype(jnp.dtype(dtype)), read))
    assert [next(iter(arrived[slab].devices())) for slab in slabs] == [slab.device for slab in slabs]
    for slab in slabs:
        np.testing.assert_array_equal(arrived[slab], read(slab))
