import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.analysis.hlo.groups import axes_of, groups_of, read_groups
from outlay.analysis.hlo.parse import parse_hlo

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SIZES, st.randoms(use_true_random=False))
def test_iota_form_counts_transposes_and_splits(dims, random):
    order = list(range(len(dims)))
    random.shuffle(order)
    total = int(np.prod(dims))
    rows = random.choice([row for row in range(1, total + 1) if total % row == 0])
    text = f"[{rows},{total // rows}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    expected = np.arange(total).reshape(dims).transpose(order).reshape(rows, -1)
    assert np.array_equal(read_groups(text, total), expected)


@pytest.mark.compiles
@given(SIZES, st.data())
def test_mesh_form_groups_by_the_named_axes_in_their_order(dims, data):
    names = [f"axis_{dim}" for dim in range(len(dims))]
    used = data.draw(st.permutations(range(len(dims))).map(lambda order: order[: len(order) // 2 + 1]))
    mesh = ",".join(f"'{name}'={size}" for name, size in zip(names, dims, strict=True))
    text = f"mesh[{mesh}] {{{','.join(repr(names[dim]) for dim in used)}}}"
    total = int(np.prod(dims))
    rest = [dim for dim in range(len(dims)) if dim not in used]
    width = int(np.prod([dims[dim] for dim in used]))
    expected = np.arange(total).reshape(dims).transpose(rest + list(used)).reshape(-1, width)
    assert np.array_equal(read_groups(text, total), expected)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("{{3,1},{0,2}}", ((3, 1), (0, 2))),
        ("{}", (tuple(range(8)),)),
        ("{{}}", (tuple(range(8)),)),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['data'=4,'model'=2] {'model'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=8] {'a':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=8] {'a':(4)2,'a':(1)2}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'b'}", ((0, 3), (1, 2))),
        ("mesh[a=2,b=4] {a}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        # nonsense is not understood, which is not an error
        ("{{0,9}}", ()),
        ("[3,3]<=[8]", ()),
        ("[999999999,999999999]<=[999999999,999999999]", ()),
        ("mesh['a'=2] {'b'}", ()),
        ("mesh['a'=8] {'a':(3)2}", ()),
        ("mesh['a'=8] {'a':(0)2}", ()),
        ("whatever", ()),
    ],
)
def test_forms(text, groups):
    assert read_groups(text, 8) == groups


MODULE = """HloModule m, replica_count={replicas}, num_partitions={partitions}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  ROOT %y = f32[4]{{0}} {opcode}(%x), {attributes}
}}
"""


GLOBAL = "channel_id=1, use_global_device_ids=true, replica_groups="


@pytest.mark.parametrize(
    ("replicas", "partitions", "opcode", "attributes", "groups"),
    [
        (1, 4, "all-reduce", GLOBAL + "{{0,1},{2,3}}", ((0, 1), (2, 3))),
        (2, 2, "all-reduce", GLOBAL + "{{0,3},{1,2}}", ((0, 3), (1, 2))),
        (2, 2, "all-reduce", "replica_groups={{0,1}}", ((0, 2), (1, 3))),
        (4, 1, "all-reduce", "replica_groups={}", ((0, 1, 2, 3),)),
        (1, 4, "all-reduce", "channel_id=1, replica_groups={{0}}", ((0, 1, 2, 3),)),
        (2, 2, "all-gather", "channel_id=1, replica_groups={{0},{1}}", ((0, 1), (2, 3))),
        (1, 4, "all-to-all", "channel_id=1, replica_groups={{0,1},{2,3}}", ((0, 1), (2, 3))),
        (2, 2, "all-to-all", "channel_id=1, replica_groups={{0,1}}", ((0, 1), (2, 3))),
        (1, 4, "collective-permute", "channel_id=1, source_target_pairs={{0,1},{1,2}}", ((0, 1), (1, 2))),
        (1, 4, "collective-permute", "channel_id=1, source_target_pairs={{0,1},{1,2,3}}", ()),
        (1, 4, "all-reduce", GLOBAL + "mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3))),
    ],
)
def test_numbers_of_groups_are_devices_replicas_or_partitions(replicas, partitions, opcode, attributes, groups):
    text = MODULE.format(replicas=replicas, partitions=partitions, opcode=opcode, attributes=attributes)
    module = parse_hlo(text)
    assert groups_of(module, module.computations["main"].instructions["y"]) == groups


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
