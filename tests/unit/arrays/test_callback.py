"""Global arrays from a function: what is asked for, how often, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import outlay


def test_a_slice_that_several_devices_hold_is_asked_for_once() -> None:
    asked: list[Any] = []

    def read(index: Any) -> np.ndarray:
        asked.append(index)
        return np.arange(8)[index]

    x = outlay.arrays.from_callback(read, (8,), int, NamedSharding(outlay.mesh(x=2, y=4), P("x")))
    np.testing.assert_array_equal(x, np.arange(8))
    assert asked == [(slice(0, 4),), (slice(4, 8),)]


def test_the_array_does_not_see_what_the_caller_writes_later() -> None:
    buffer = np.zeros(4096 + 16, np.float32)
    aligned = buffer[(-buffer.ctypes.data % 64) // 4 :][:4096]  # memory that a CPU device would use as it is
    x = outlay.arrays.from_callback(
        lambda index: aligned[index], (4096,), np.float32, NamedSharding(outlay.mesh(x=8), P("x"))
    )
    aligned[:] = 7
    assert float(np.max(x)) == 0


def test_wrong_pieces_are_all_named() -> None:
    def read(index: Any) -> np.ndarray:
        return np.ones(3 if index[0].start == 2 else 2, np.int32 if index[0].start == 4 else np.float32)

    with pytest.raises(outlay.errors.PlaceError, match=r"2 pieces of a global array \(16,\)") as caught:
        outlay.arrays.from_callback(read, (16,), np.float32, NamedSharding(outlay.mesh(x=8), P("x")))
    assert [(p.kind, p.where, p.what) for p in caught.value.problems] == [
        ("other shape", "x[2:4]", "shape (3,), asked for (2,)"),
        ("other dtype", "x[4:6]", "dtype int32, asked for float32"),
    ]


def test_a_shape_that_cannot_have_the_sharding_is_refused_with_every_dim() -> None:
    sharding = NamedSharding(outlay.mesh(x=4, y=2), P("x", "y"))
    with pytest.raises(
        outlay.errors.PlaceError, match=r"P\('x', 'y'\) on mesh x=4, y=2 does not fit: 2 problem"
    ) as caught:
        outlay.arrays.from_callback(lambda index: np.ones(1), (6, 3), float, sharding)
    assert [p.fix for p in caught.value.problems] == [
        "pad it to 8, or split another dim",
        "pad it to 4, or split another dim",
    ]
    with pytest.raises(outlay.errors.PlaceError, match=r"is for 2 dims, the array \(8,\) has 1"):
        outlay.arrays.from_callback(lambda index: np.ones(1), (8,), float, sharding)


def test_an_abstract_mesh_has_no_devices() -> None:
    sharding = NamedSharding(AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,)), P("x"))
    with pytest.raises(outlay.errors.PlaceError, match="cannot be put on an AbstractMesh"):
        outlay.arrays.from_callback(lambda index: np.ones(1), (8,), float, sharding)


def test_numbers_of_64_bits_become_what_jax_holds() -> None:
    x = outlay.arrays.from_callback(
        lambda index: np.arange(8.0)[index], (8,), np.float64, NamedSharding(outlay.mesh(x=8), P("x"))
    )
    assert x.dtype == np.float32
    assert jax.device_get(x).tolist() == list(range(8))
