"""Slices of arrays over a mesh: values, places, what travels, and indices that do not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.arrays.slicing import _cut

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_global_arrays.py slices there

VALUE = np.arange(16 * 8 * 2, dtype=np.float32).reshape(16, 8, 2)


@pytest.fixture(params=[False, True], ids=["auto", "explicit"])
def x(request: Any) -> jax.Array:
    mesh = outlay.mesh(a=4, b=2, explicit=request.param)
    return jax.device_put(VALUE, NamedSharding(mesh, P("a", "b")))


@pytest.mark.parametrize(
    "index",
    [
        np.s_[3:9],
        np.s_[-3:, 1],
        np.s_[5],
        np.s_[..., 0],
        np.s_[1:15:3, ..., 1:],
        np.s_[4:4],
        np.s_[:],
        np.s_[7:2],
        np.s_[2, 3, 1],
    ],
    ids=str,
)
def test_a_slice_has_numpys_values_on_every_device(index: Any, x: jax.Array) -> None:
    piece = outlay.arrays.slice_of(x, index)
    assert piece.is_fully_replicated
    assert piece.sharding.mesh == x.sharding.mesh
    np.testing.assert_array_equal(piece, VALUE[index])


def test_a_slice_lives_where_it_is_told_to(x: jax.Array) -> None:
    sharding = NamedSharding(x.sharding.mesh, P(None, "a"))
    piece = outlay.arrays.slice_of(x, np.s_[3:9, :, 1], sharding)
    assert piece.sharding == sharding
    np.testing.assert_array_equal(piece, VALUE[3:9, :, 1])


def test_only_what_is_in_the_slice_travels() -> None:
    rows = NamedSharding(outlay.mesh(x=8), P("x"))
    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=rows)
    sharding = NamedSharding(rows.mesh, P())
    compiled = _cut(((3, 9, 1), (0, 1024, 1)), (0, 1), sharding).lower(shape).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 64 * 1024 * 4  # of 1024 rows


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (np.s_[3:17], r"out of range: dim 0\n    slice 3:17, size 16\n    fix: use bounds from 0 to 16"),
        (np.s_[16, :, 2], r"2 problems\n  out of range: dim 0\n.*\n.*\n  out of range: dim 2\n    index 2, size 2"),
        (np.s_[::-1], "unknown step: dim 0\n    step -1"),
        (np.s_[0, 0, 0, 0], r"the index has 4 entries, the array \(16, 8, 2\) has 3 dims"),
        ("name", "'name' is neither a number nor a slice"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(index: Any, text: str, x: jax.Array) -> None:
    with pytest.raises(outlay.errors.PlaceError, match=text):
        outlay.arrays.slice_of(x, index)


def test_a_place_that_does_not_fit_is_refused(x: jax.Array) -> None:
    with pytest.raises(
        outlay.errors.PlaceError, match=r"dim 0 of \(6, 8, 2\) has size 6, which is not divisible by a=4"
    ):
        outlay.arrays.slice_of(x, np.s_[3:9], NamedSharding(x.sharding.mesh, P("a")))
    few = outlay.mesh(a=2, devices=jax.devices()[:2])
    with pytest.raises(outlay.errors.PlaceError, match="is to live on 2 devices that are not the 8"):
        outlay.arrays.slice_of(x, np.s_[3:9], NamedSharding(few, P()))
    with pytest.raises(outlay.errors.PlaceError, match="this one has a SingleDeviceSharding"):
        outlay.arrays.slice_of(jnp.ones(3), np.s_[0])
