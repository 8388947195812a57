"""Gather, scatter and broadcast in one process, and what they refuse; two processes are in tests/multiprocess."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_global_arrays.py gathers and scatters there


@pytest.fixture
def rows() -> NamedSharding:
    return NamedSharding(outlay.mesh(x=8), P("x"))


def test_gather_gives_numpy_for_every_leaf(rows: NamedSharding) -> None:
    tree = {"x": jax.device_put(np.arange(8), rows), "host": np.ones(2), "number": 3}
    gathered = outlay.arrays.gather(tree, to=0)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(gathered))
    assert jax.tree.map(np.ndarray.tolist, gathered) == {"x": list(range(8)), "host": [1.0, 1.0], "number": 3}


def test_gather_refuses_keys_by_path() -> None:
    with pytest.raises(outlay.errors.PlaceError, match="1 of 2 arrays cannot be gathered") as caught:
        outlay.arrays.gather({"x": np.ones(2), "dropout": {"key": jax.random.key(0)}})
    assert caught.value.problems[0].where == "dropout.key"
    assert caught.value.problems[0].fix == "gather(jax.random.key_data(key))"


@pytest.mark.parametrize("process", [1, -1, "0", 0.0])
def test_a_process_that_is_not_there_is_refused(process: Any, rows: NamedSharding) -> None:
    for name, call in {
        "to": lambda: outlay.arrays.gather(np.ones(2), to=process),
        "source": lambda: outlay.arrays.scatter(np.ones(8), rows, source=process),
    }.items():
        with pytest.raises(
            outlay.errors.PlaceError, match=rf"no such process: {name}={process!r}\n    there is 1 process"
        ):
            call()


@pytest.mark.parametrize("value", [np.arange(16), np.arange(16).reshape(8, 2).astype(jnp.bfloat16), [1.0] * 8])
def test_scatter_places_the_value(value: Any, rows: NamedSharding) -> None:
    x = outlay.arrays.scatter(value, rows)
    assert x.sharding == rows
    np.testing.assert_array_equal(x, value)


def test_broadcast_keeps_dtype_and_shape() -> None:
    for value in (np.float64(2**53 + 1), np.ones((2, 0)), np.array(True), np.arange(3, dtype=jnp.int4)):
        received = outlay.arrays.broadcast(value)
        assert received.dtype == value.dtype
        np.testing.assert_array_equal(received, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "process 0\n    passed None"), ("text", r"process 0\n    text \(<U4\), which JAX has not")],
)
def test_what_is_no_array_is_not_sent(value: Any, text: str) -> None:
    with pytest.raises(outlay.errors.PlaceError, match=text):
        outlay.arrays.broadcast(value)


def test_scatter_refuses_a_dim_that_does_not_divide(rows: NamedSharding) -> None:
    with pytest.raises(outlay.errors.PlaceError, match=r"dim 0 of \(12,\) has size 12, which is not divisible by x=8"):
        outlay.arrays.scatter(np.ones(12), rows)
