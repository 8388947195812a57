"""Every kind of value comes in alike by every way: as `jax.numpy.asarray` has it, or refused by its leaf."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.compiles

EIGHT = np.arange(8)


class OfAnotherLibrary:
    """An array that only says how to become one of NumPy, with attributes of its own meaning."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, f"other.{array.dtype}"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


class OnlyByDlpack(OfAnotherLibrary):
    """As PyTorch's bfloat16: NumPy cannot have it, and JAX can."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType")

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def masked(at: int) -> np.ma.MaskedArray:
    return np.ma.array(EIGHT.astype(np.float32), mask=at == EIGHT)


def with_one(value: Any, dtype: Any) -> np.ndarray:
    array = EIGHT.astype(dtype)
    array[3] = value
    return array


# What NumPy makes by default comes first: most labels are int64, most features float64.
TAKEN: dict[str, Any] = {
    "int64": EIGHT,
    "largest int64": with_one(2**31 - 1, np.int64),
    "smallest int64": with_one(-(2**31), np.int64),
    "uint64": with_one(2**32 - 1, np.uint64),
    "float64": EIGHT / 3,
    "float64 not finite": np.array([np.nan, np.inf, -np.inf, 1e-300, -0.0, 3e38, 1, 2]),
    "complex128": EIGHT / 3 + 1j,
    "bool": EIGHT > 3,
    "int8": -EIGHT.astype(np.int8),
    "uint8": EIGHT.astype(np.uint8),
    "float16": EIGHT.astype(np.float16),
    "bfloat16": EIGHT.astype(ml_dtypes.bfloat16),
    "float8": EIGHT.astype(ml_dtypes.float8_e4m3fn),
    "big-endian float32": EIGHT.astype(">f4"),
    "big-endian int64": EIGHT.astype(">i8"),
    "little-endian int16": EIGHT.astype("<i2"),
    "backwards": np.arange(16)[::-2],
    "every other": np.arange(16, dtype=np.float32)[::2],
    "with a mask of nothing": masked(8),
    "rows": np.asfortranarray(np.arange(16.0).reshape(8, 2)),
    "of another library": OfAnotherLibrary(EIGHT.astype(np.float32)),
    "by dlpack": OnlyByDlpack(EIGHT.astype(np.float32)),
    "a buffer": memoryview(EIGHT),
    "old-style keys": np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 8))),
    "of JAX": jnp.arange(8),
}
# What is said by every way, and what besides where the whole value is looked at, and not a slice of it.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "beyond int32": (with_one(2**40 + 7, np.int64), "int64 1099511627783 at", r"\[3\], which int32 cannot hold"),
    "below int32": (with_one(-(2**31) - 1, np.int64), "int64 -2147483649 at", r"\[3\]"),
    "beyond uint32": (with_one(2**32, np.uint64), "uint64 4294967296 at", r"\[3\], which uint32 cannot hold"),
    "big-endian, beyond": (with_one(2**40, ">i8"), "int64 1099511627776 at", r"\[3\]"),
    "beyond float32": (with_one(1e300, np.float64), r"float64 1e\+300 at", r"\[3\], which float32 cannot hold"),
    "beyond complex64": (with_one(1e300j, np.complex128), r"complex128 1e\+300j at", r"\[3\], which complex64"),
    "several beyond": (EIGHT + 2**40, "int64 10995116277", r"76 at \[0\] \(and 7 more\)"),
    "of another library, beyond": (OfAnotherLibrary(EIGHT + 2**40), "int64 10995116277", r"at \[0\]"),
    "masked": (masked(3), "values are masked", "1 of 8"),
    "text": (np.array(["a"] * 8), r"text \(<U1\)", ""),
    "bytes": (np.array([b"a"] * 8), r"bytes \(\|?S1\)", ""),
    "dates": (EIGHT.astype("M8[s]"), r"dates \(datetime64\[s\]\)", ""),
    "durations": (EIGHT.astype("m8[s]"), r"durations \(timedelta64\[s\]\)", ""),
    "records": (np.zeros(8, [("mass", "f4"), ("id", "i8")]), "records of mass, id", ""),
    "objects": (EIGHT.astype(object), "Python objects", ""),
    "long doubles": (EIGHT.astype(np.longdouble), "dtype (float128|longdouble), which JAX has not", ""),
}


def split() -> NamedSharding:
    return NamedSharding(outlay.mesh(data=8), P("data"))


def planned(value: Any) -> Any:
    """The shape and dtype that a program or a plan would have been made for."""
    array = np.asarray(getattr(value, "array", value)).view(np.ndarray)
    number = array.dtype.newbyteorder("=") if array.dtype.kind in "biufcV" and not array.dtype.names else np.float32
    try:
        return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(number))
    except TypeError:
        return jax.ShapeDtypeStruct(array.shape, np.float32)


@functools.cache
def reader(shape: tuple[int, ...], dtype: Any) -> outlay.Program:
    """Return the batch as it came in."""
    example = {"x": jax.ShapeDtypeStruct(shape, dtype)}

    def read(state, batch):
        return {"got": batch["x"]}

    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)
    return outlay.program(read, lambda key: jnp.zeros(()), example, layout=layout, mesh=mesh, donate=False)


def by_program(value: Any, folder: Path) -> Any:
    program = reader(planned(value).shape, planned(value).dtype)
    return program(jnp.zeros(()), {"x": value})["got"]


def by_example(value: Any, folder: Path) -> Any:
    """What a program is made for; no value is read, but which dtype it has is known then."""
    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)

    def step(state, batch):
        return (state, batch["x"])

    program = outlay.program(step, lambda key: jnp.zeros(()), {"x": value}, layout=layout, mesh=mesh)
    assert program.batch_shapes["x"].dtype == planned(value).dtype
    return None


def by_put(value: Any, folder: Path) -> Any:
    return outlay.arrays.put({"x": value}, split())["x"]


def by_plan(value: Any, folder: Path) -> Any:
    mesh = outlay.mesh(data=8)
    plan = outlay.Layout([("x", P("data"))]).plan({"x": planned(value)}, mesh)
    return outlay.arrays.put({"x": value}, plan, mesh)["x"]


def by_pieces(value: Any, folder: Path) -> Any:
    return outlay.arrays.from_pieces(value, split())


def by_scatter(value: Any, folder: Path) -> Any:
    return outlay.arrays.scatter(value, split())


def by_callback(value: Any, folder: Path) -> Any:
    form = planned(value)
    whole = value if isinstance(value, np.ndarray | jax.Array) else None

    def read(index: Any) -> Any:
        if whole is not None:
            return whole[index]
        return type(value)(value.array[index]) if hasattr(value, "array") else value[index[0]]

    return outlay.arrays.from_callback(read, form.shape, form.dtype, split())


def by_file(value: Any, folder: Path) -> Any:
    np.save(folder / "x.npy", value)
    return outlay.arrays.from_file(folder / "x.npy", split())


def by_data(value: Any, folder: Path) -> Any:
    program = reader(planned(value).shape, planned(value).dtype)
    data = outlay.TrainData({"x": value, "row": EIGHT.astype(np.int32)}, batch_size=8)
    order = np.argsort(data[0]["row"])
    without = outlay.TrainData({"x": value}, batch_size=8)
    return np.asarray(without.on(program)[0]["x"])[order]


WAYS = {
    "program": by_program,
    "example": by_example,
    "put": by_put,
    "plan": by_plan,
    "from_pieces": by_pieces,
    "scatter": by_scatter,
    "from_callback": by_callback,
    "from_file": by_file,
    "data": by_data,
}
NOT_BY = {
    # A file holds what np.save writes; a data set selects rows, which buffers and libraries without indices cannot.
    "from_file": {"bfloat16", "float8", "masked", "with a mask of nothing", "of another library", "by dlpack"}
    | {"of another library, beyond", "objects", "of JAX"},
    "data": {"a buffer", "of JAX"},
}


def cases(kinds: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(way, kind, id=f"{way}-{kind}") for way in WAYS for kind in kinds if kind not in NOT_BY.get(way, ())
    ]


@pytest.mark.some_cases(60)
@pytest.mark.parametrize(("way", "kind"), cases(TAKEN))
def test_a_value_is_converted_as_jax_does(way: str, kind: str, tmp_path: Path) -> None:
    value = TAKEN[kind]
    plain = np.asarray(getattr(value, "array", value)).view(np.ndarray)
    want = jnp.asarray(plain.astype(plain.dtype.newbyteorder("=")))
    got = WAYS[way](value, tmp_path)
    if got is not None:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.some_cases(40)
@pytest.mark.parametrize(("way", "kind"), cases(REFUSED))
def test_a_refused_value_is_named_by_its_leaf(way: str, kind: str, tmp_path: Path) -> None:
    value, always, whole = REFUSED[kind]
    with pytest.raises(outlay.OutlayError) as caught:
        WAYS[way](value, tmp_path)
    assert re.search(always, str(caught.value)), str(caught.value)
    if way not in ("from_callback", "from_file", "data"):
        assert re.search(whole, str(caught.value)), str(caught.value)
    leaf = {"program": "batch.x", "example": "x", "put": "x", "plan": "x", "data": "batch.x", "from_callback": "x"}.get(
        way
    )
    assert all(problem.fix for problem in caught.value.problems)
    assert leaf is None or all(problem.where.startswith(leaf) for problem in caught.value.problems)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("way", ["put", "from_pieces", "scatter", "from_callback"])
def test_keys_of_either_kind_come_in(way: str, impl: str, tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(7, impl=impl), 8)
    if way == "from_callback":
        got = outlay.arrays.from_callback(lambda index: keys[index], keys.shape, keys.dtype, split())
    else:
        got = WAYS[way](keys, tmp_path)
    assert got.dtype == keys.dtype
    assert got.sharding.is_equivalent_to(split(), 1)
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(keys))


def test_a_callback_that_gives_no_keys_is_told() -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    with pytest.raises(outlay.errors.PlaceError, match=r"uint32, asked for key<fry>\n.*wrap_key_data"):
        outlay.arrays.from_callback(lambda index: jax.random.key_data(keys)[index], (8,), keys.dtype, split())


@pytest.mark.parametrize("way", [outlay.arrays.from_pieces, outlay.arrays.scatter], ids=["from_pieces", "scatter"])
def test_lists_are_arrays_where_no_tree_is_meant(way: Callable[..., Any]) -> None:
    got = way([[1, 2]] * 8, split())
    assert (got.dtype, got.shape) == (jnp.int32, (8, 2))
    with pytest.raises(outlay.errors.PlaceError, match=r"rows of different lengths, 1 to 2\n    fix: pad them"):
        way([[1, 2], [1]] * 4, split())
    with pytest.raises(outlay.errors.PlaceError, match=r"int64 1099511627776 at \[1\]"):
        way([0, 2**40] * 4, split())
    with pytest.raises(outlay.errors.PlaceError, match=r"8 of 64 values are masked"):
        way([masked(3)] * 8, split())


def test_numbers_of_python_in_a_tree() -> None:
    whole = NamedSharding(outlay.mesh(data=8), P())
    got = outlay.arrays.put({"i": 5, "b": True, "f": 0.5, "c": 1j, "n": np.int64(7), "inf": float("inf")}, whole)
    dtypes = {name: str(leaf.dtype) for name, leaf in got.items()}
    assert dtypes == {"i": "int32", "b": "bool", "f": "float32", "c": "complex64", "n": "int32", "inf": "float32"}
    with pytest.raises(outlay.errors.PlaceError, match=r"4 leaves cannot be placed") as caught:
        outlay.arrays.put({"i": 2**31, "f": 1e300, "n": np.int64(2**40), "huge": 2**70, "well": 1}, whole)
    assert [problem.where for problem in caught.value.problems] == ["f", "huge", "i", "n"]


def test_all_leaves_of_state_and_batch_are_named_at_once() -> None:
    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)

    def step(state, batch):
        return (state, {"x": batch["x"].sum()})

    batch = {"x": np.zeros(8, np.int32), "label": np.zeros(8, np.int32)}
    program = outlay.program(step, lambda key: {"n": jnp.zeros((), jnp.int32)}, batch, layout=layout, mesh=mesh)
    odd = {"x": EIGHT + 2**40, "label": np.ma.array(EIGHT, mask=EIGHT > 3)}
    with pytest.raises(outlay.errors.ProgramError, match=r"hold 3 values that JAX cannot hold") as caught:
        program({"n": np.int64(2**40)}, odd)
    assert [problem.where for problem in caught.value.problems] == ["n", "batch.label", "batch.x"]
    state, _ = program({"n": np.int64(3)}, {"x": EIGHT, "label": EIGHT.astype(">i8")})
    assert int(state["n"]) == 3


def test_with_64_bits_nothing_is_narrowed() -> None:
    with jax.enable_x64(True):
        for way in ("put", "from_pieces", "scatter"):
            got = WAYS[way](EIGHT + 2**40, Path())
            assert got.dtype == jnp.int64
            np.testing.assert_array_equal(got, EIGHT + 2**40)


def test_a_run_converts_and_refuses_as_a_call_does() -> None:
    def step(state, batch):
        return (state + 1, {"loss": batch["y"].astype(jnp.float32).mean()})

    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)
    program = outlay.program(step, lambda key: jnp.zeros(()), {"y": EIGHT}, layout=layout, mesh=mesh)
    for how in ({}, {"steps_per_call": 2}):
        done = outlay.fit(program, [{"y": EIGHT}] * 2, steps=2, key=jax.random.key(0), progress=False, **how)
        assert [metrics["loss"] for metrics in done.history] == [3.5, 3.5]
        with pytest.raises(outlay.errors.ProgramError, match=r"out of range: batch\..*y"):
            outlay.fit(program, [{"y": EIGHT + 2**40}] * 2, steps=2, key=jax.random.key(0), progress=False, **how)


def test_evaluation_converts_and_refuses_alike() -> None:
    program = outlay.program(
        lambda state, batch: {"loss": batch["y"].astype(jnp.float32)},
        lambda key: jnp.zeros(()),
        {"y": EIGHT},
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        donate=False,
    )
    assert outlay.evaluate(program, jnp.zeros(()), {"y": np.arange(11).astype(">i8")}) == {"loss": 5.0}
    with pytest.raises(outlay.OutlayError, match=r"int64 1099511627776"):
        outlay.evaluate(program, jnp.zeros(()), {"y": np.arange(11) + 2**40})
    with pytest.raises(outlay.OutlayError, match=r"values are masked"):
        outlay.evaluate(program, jnp.zeros(()), {"y": np.ma.array(EIGHT, mask=EIGHT == 0)})
