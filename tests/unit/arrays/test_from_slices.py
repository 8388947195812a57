"""Global arrays read slice by slice: what is read, how often, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
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


VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def blocks() -> NamedSharding:
    return NamedSharding(outlay.mesh(a=4, b=2), P("a", "b"))


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_either_order(order: Any, tmp_path: Path, blocks: NamedSharding) -> None:
    np.save(tmp_path / "x.npy", np.asarray(VALUE, order=order))
    x = outlay.arrays.from_file(tmp_path / "x.npy", blocks)
    assert x.sharding == blocks
    np.testing.assert_array_equal(x, VALUE)


def test_the_array_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, VALUE)
    x = outlay.arrays.from_file(path, NamedSharding(outlay.mesh(x=8), P("x")))
    path.write_bytes(b"")
    np.testing.assert_array_equal(x, VALUE)


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_zarr_of_either_version(driver: str, tmp_path: Path, blocks: NamedSharding) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    value = VALUE.astype(jnp.bfloat16)
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(tmp_path / "x")}}
    store = tensorstore.open(spec, create=True, dtype=tensorstore.bfloat16, shape=[8, 8]).result()
    store.write(value).result()
    x = outlay.arrays.from_file(tmp_path / "x", blocks)
    assert x.dtype == jnp.bfloat16
    np.testing.assert_array_equal(x, value)


def cut_short(path: Path) -> None:
    np.save(path, VALUE)
    path.write_bytes(path.read_bytes()[:-40])


def objects(path: Path) -> None:
    np.save(path, np.array([{}], object))


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("gone.npy", lambda path: None, "there is no such file"),
        ("x.txt", Path.touch, r"slices cannot be read from .txt"),
        ("x.npy", cut_short, "numpy cannot map it: mmap length is greater than file size"),
        ("x.npy", Path.touch, "numpy cannot map it"),
        ("x.npy", objects, "numpy cannot map it: Array can't be memory-mapped: Python objects in dtype"),
        ("x", Path.mkdir, "the folder holds none of zarr.json, .zarray"),
    ],
)
def test_what_is_no_array_is_refused_by_name(name: str, make: Any, text: str, tmp_path: Path, blocks: Any) -> None:
    make(tmp_path / name)
    with pytest.raises(outlay.errors.PlaceError, match=rf"{name} cannot be read by 1 of 1 process\n.*\n    {text}"):
        outlay.arrays.from_file(tmp_path / name, blocks)


def test_a_broken_zarr_is_refused(tmp_path: Path, blocks: Any) -> None:
    pytest.importorskip("tensorstore")
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(outlay.errors.PlaceError, match="TensorStore cannot open it"):
        outlay.arrays.from_file(tmp_path, blocks)


def test_zarr_without_tensorstore_says_what_to_install(tmp_path: Path, blocks: Any, monkeypatch: Any) -> None:
    (tmp_path / "zarr.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(outlay.errors.PlaceError, match="fix: pip install tensorstore"):
        outlay.arrays.from_file(tmp_path, blocks)


def test_a_shape_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(12))
    with pytest.raises(outlay.errors.PlaceError, match=r"dim 0 of \(12,\) has size 12"):
        outlay.arrays.from_file(tmp_path / "x.npy", NamedSharding(outlay.mesh(x=8), P("x")))
