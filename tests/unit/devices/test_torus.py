import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.devices.arrange import along_torus


@st.composite
def tori_with_axes(draw):
    """A torus whose dims, in any order and multiplied together as one likes, are the axes."""
    torus = draw(st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=3))
    dims = draw(st.permutations(range(len(torus))))
    owner = [draw(st.integers(0, 2)) for _ in dims]
    sizes = [
        math.prod(torus[dim] for dim, axis in zip(dims, owner, strict=True) if axis == number) for number in range(3)
    ]
    return torus, sizes


@given(tori_with_axes())
def test_axes_that_can_have_whole_dims_have_them(case):
    torus, sizes = case
    mesh = along_torus(torus, sizes)
    assert mesh.shape == tuple(sizes)
    assert sorted(mesh.flat) == list(range(math.prod(torus)))
    coords = np.stack(np.unravel_index(mesh, torus), axis=-1)
    moved = [set(np.flatnonzero((np.diff(coords, axis=axis) != 0).any(axis=(0, 1, 2)))) for axis in range(3)]
    assert sum(len(dims) for dims in moved) == len(set().union(*moved)), "no dim is shared by two axes"


@given(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3), st.data())
def test_axes_of_any_sizes_use_every_chip_once(torus, data):
    left, sizes = math.prod(torus), []
    for _ in range(2):
        sizes.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= sizes[-1]
    mesh = along_torus(torus, [*sizes, left])
    assert mesh.shape == (*sizes, left)
    assert sorted(mesh.flat) == list(range(math.prod(torus)))


@pytest.mark.parametrize(
    ("torus", "sizes", "expected"),
    [
        ((2, 2), (2, 2), [[0, 1], [2, 3]]),
        ((4, 2), (8,), [0, 1, 2, 3, 4, 5, 6, 7]),
        ((2, 4), (4, 2), [[0, 4], [1, 5], [2, 6], [3, 7]]),  # the first axis is dim 1
        ((4, 2), (2, 4), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ((2, 2, 2), (4, 2), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ((4, 4), (8, 2), np.arange(16).reshape(8, 2).tolist()),  # 8 is not a product of 4s: dims keep their order
    ],
)
def test_which_dims_an_axis_gets(torus, sizes, expected):
    assert along_torus(torus, sizes).tolist() == expected
