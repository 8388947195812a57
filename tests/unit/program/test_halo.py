"""Halos: the neighbours' rows, at edges and around the ring, and widths that do not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay


def haloed(x: Any, spec: P, **options: Any) -> Any:
    mesh = outlay.mesh(i=4, j=2)
    split = jax.shard_map(
        lambda piece: outlay.collectives.halo(piece, "i", **options), mesh=mesh, in_specs=spec, out_specs=spec
    )
    return jax.jit(split)(x)


def test_rows_of_both_neighbours_around_the_ring() -> None:
    wide = haloed(jnp.arange(8), P("i"), periodic=True)
    assert wide.reshape(4, 4).tolist() == [[7, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 0]]


def test_edges_are_filled() -> None:
    wide = haloed(jnp.arange(8), P("i"), fill=-1)
    assert wide.reshape(4, 4).tolist() == [[-1, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, -1]]


def test_widths_may_differ_and_the_dim_be_any() -> None:
    x = np.arange(24).reshape(2, 12)
    wide = haloed(x, P(None, "i"), dim=-1, width=(2, 0), fill=99)
    padded = np.pad(x, ((0, 0), (2, 0)), constant_values=99)
    expected = np.concatenate([padded[:, 3 * i : 3 * i + 5] for i in range(4)], axis=1)
    np.testing.assert_array_equal(wide, expected)


@pytest.mark.compiles
@pytest.mark.parametrize("periodic", [False, True])
def test_a_stencil_on_pieces_equals_the_stencil_on_the_whole(periodic: bool) -> None:
    def smooth(wide: Any) -> Any:
        return wide[:-3] + 2 * wide[1:-2] - wide[3:]

    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    mesh = outlay.mesh(i=4, devices=jax.devices()[:4])

    def on_piece(piece: Any) -> Any:
        return smooth(outlay.collectives.halo(piece, "i", (1, 2), periodic=periodic))

    result = jax.jit(jax.shard_map(on_piece, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(x)
    padding = ((1, 2), (0, 0))
    whole = smooth(np.pad(x, padding, mode="wrap") if periodic else np.pad(x, padding))
    np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"width": 3},
            r"widths \(3, 3\) do not fit a piece \(2,\): dim 0 is 2 long on each of the 4 devices along 'i'",
        ),
        ({"width": 3}, "fix: split dim 0 over 2 devices at most"),
        ({"width": 30}, "fix: a smaller width"),
        ({"width": (1, -1)}, "fix: a smaller width"),
        ({"dim": 1}, r"there is no dim 1 in a piece \(2,\)"),
    ],
)
def test_impossible_widths_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(outlay.errors.ProgramError, match=text):
        haloed(jnp.arange(8), P("i"), **options)
