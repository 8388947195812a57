import itertools

import numpy as np
import pytest

from outlay.analysis.hlo.axes import axes_of

MESHES = [
    (("data", 4), ("model", 2)),
    (("data", 2), ("pipe", 2), ("model", 2)),
    (("data", 3), ("one", 1), ("model", 4)),
    (("data", 8),),
]


@pytest.mark.parametrize("mesh", MESHES)
def test_every_subset_of_axes(mesh):
    sizes = [size for _, size in mesh]
    for dims in itertools.chain.from_iterable(
        itertools.combinations(range(len(mesh)), n) for n in range(len(mesh) + 1)
    ):
        rest = [dim for dim in range(len(mesh)) if dim not in dims]
        width = int(np.prod([sizes[dim] for dim in dims], dtype=int))
        positions = np.arange(np.prod(sizes)).reshape(sizes)
        groups = positions.transpose(rest + list(dims)).reshape(-1, width)
        assert axes_of(groups.tolist(), mesh) == tuple(mesh[dim][0] for dim in dims if sizes[dim] > 1)
        # the order of members and groups does not matter
        assert axes_of(groups[::-1, ::-1].tolist(), mesh) == axes_of(groups.tolist(), mesh)


@pytest.mark.parametrize("shift", [1, 2, -1])
def test_shifts_along_an_axis(shift):
    mesh = (("data", 4), ("model", 8))
    pairs = [(row * 8 + i, row * 8 + (i + shift) % 8) for row in range(4) for i in range(8)]
    assert axes_of(pairs, mesh) == ("model",)
    open_ended = [(row * 8 + i, (row + 1) * 8 + i) for row in range(3) for i in range(8)]
    assert axes_of(open_ended, mesh) == ("data",)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ((), ()),
        (((0,), (1,)), ()),
        (((0, 1), (2, 3)), ()),  # half of `model`
        (((0, 1, 4, 5), (2, 3, 6, 7)), ()),  # `data` and half of `model`
        (((0, 5), (1, 4), (2, 7), (3, 6)), ()),  # diagonals
        (((0, 9),), ()),  # no such device
    ],
)
def test_groups_that_are_no_axes(groups, axes):
    assert axes_of(groups, (("data", 2), ("model", 4))) == axes


def test_disjoint_pairs_are_a_permutation_when_said_so():
    mesh = (("data", 2), ("model", 4))
    assert axes_of(((0, 1), (4, 5)), mesh) == ()
    assert axes_of(((0, 1), (4, 5)), mesh, permutation=True) == ("model",)


def test_a_pair_that_stays_moves_along_nothing():
    assert axes_of(((0, 0), (1, 1)), (("data", 2),), permutation=True) == ()
