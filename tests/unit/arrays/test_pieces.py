"""Pieces of one process, where its piece is the whole; two processes are in tests/multiprocess."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay


@pytest.mark.parametrize("spec", [P("a", "b"), P("b"), P(None, ("a", "b")), P()])
def test_one_process_has_every_piece(spec: P) -> None:
    value = np.arange(64).reshape(8, 8)
    x = outlay.arrays.from_pieces(value, NamedSharding(outlay.mesh(a=4, b=2), spec))
    assert x.sharding.spec == spec
    np.testing.assert_array_equal(x, value)


def test_another_global_shape_than_the_pieces_make_is_refused() -> None:
    rows = NamedSharding(outlay.mesh(x=8), P("x"))
    with pytest.raises(outlay.errors.PlaceError, match=r"do not form one array split P\('x'\)") as caught:
        outlay.arrays.from_pieces(np.ones((8, 2)), rows, shape=(16, 2))
    assert caught.value.problems[0].what == "shape (8, 2) float64, asked for a global shape (16, 2)"
    assert "give a piece of shape (16, 2)" in caught.value.problems[0].fix
    with pytest.raises(outlay.errors.PlaceError, match="give pieces of the same rank"):
        outlay.arrays.from_pieces(np.ones(8), rows, shape=(8, 2))


def test_a_dim_that_does_not_divide_is_refused() -> None:
    with pytest.raises(outlay.errors.PlaceError, match=r"dim 0 of \(12,\) has size 12, which is not divisible by x=8"):
        outlay.arrays.from_pieces(np.ones(12), NamedSharding(outlay.mesh(x=8), P("x")))
