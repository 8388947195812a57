import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.devices.arrange import arrange, group_by_host
from outlay.devices.mesh_spec import MeshSpec


@st.composite
def specs_on_hosts(draw):
    """A spec that fits, with the number of hosts: crossing sizes times inside sizes, the inside ones filling hosts."""
    inside = draw(st.dictionaries(st.sampled_from(["model", "seq"]), st.integers(1, 4)))
    crossing = draw(st.dictionaries(st.sampled_from(["data", "fsdp", "replica"]), st.integers(1, 6), min_size=1))
    count = math.prod(crossing.values())
    num_hosts = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    axes = draw(st.permutations([*inside.items(), *crossing.items()]))
    return MeshSpec(dict(axes)), list(inside), num_hosts


@given(case=specs_on_hosts())
def test_every_device_has_one_place_and_inside_axes_never_leave_a_host(case):
    spec, inside, num_hosts = case
    num_devices = math.prod(spec.axis_sizes.values())
    per_host = num_devices // num_hosts
    spec.resolve(num_devices, num_hosts)
    groups = group_by_host([position // per_host for position in range(num_devices)])
    result = arrange(spec, groups)
    assert result.shape == tuple(spec.axis_sizes.values())
    assert sorted(result.flat) == list(range(num_devices))
    dims = [dim for dim, (name, _) in enumerate(spec.axes) if name in inside]
    together = np.moveaxis(result, dims, range(result.ndim - len(dims), result.ndim))
    rows = together.reshape(-1, math.prod(spec.axis_sizes[name] for name in inside))
    assert (rows // per_host == rows[:, :1] // per_host).all()
    if num_hosts > 1:
        assert (np.diff(rows, axis=1) == 1).all(), "inside axes run over neighbours, innermost"


def test_on_one_host_devices_are_in_row_major_order_as_the_axes_are_written():
    groups = group_by_host([0] * 8)
    assert arrange(MeshSpec({"model": 2, "data": 4}), groups).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_inside_axes_are_innermost_whatever_the_order_of_writing():
    groups = group_by_host([0, 0, 0, 0, 1, 1, 1, 1])
    assert arrange(MeshSpec({"data": 4, "model": 2}), groups).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert arrange(MeshSpec({"model": 2, "data": 4}), groups).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_the_outermost_crossing_axis_runs_over_the_hosts():
    groups = group_by_host([0, 0, 0, 0, 1, 1, 1, 1])
    assert arrange(MeshSpec({"replica": 2, "fsdp": 4}), groups).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    inside = MeshSpec({"data": 4, "pipe": 2}, over={"data": "host", "pipe": "hosts"})
    assert arrange(inside, groups).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_hosts_are_not_cut_across_an_axis_that_does_not_divide_them():
    groups = group_by_host([0, 0, 0, 1, 1, 1])
    assert arrange(MeshSpec({"replica": 3, "data": 2}), groups).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_devices_of_a_host_need_not_be_next_to_each_other_in_the_list():
    groups = group_by_host([7, 3, 7, 3])
    assert groups == [[0, 2], [1, 3]]
    assert arrange(MeshSpec({"data": 2, "model": 2}), groups).tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("hosts", "groups"),
    [
        ([0, 0, 0, 1], [[0], [1], [2], [3]]),
        ([0, 0, 0, 0, 1, 1], [[0, 1], [2, 3], [4, 5]]),
        ([5, 9, 5, 5, 9, 5], [[0, 2], [3, 5], [1, 4]]),
        ([0] * 4 + [1] * 8 + [2] * 12, [list(range(start, start + 4)) for start in range(0, 24, 4)]),
    ],
)
def test_hosts_with_different_numbers_of_devices_are_cut_into_equal_groups(hosts, groups):
    assert group_by_host(hosts) == groups
    assert all(len({hosts[position] for position in group}) == 1 for group in groups)
