import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.search.candidate import mesh_info, mesh_shapes

AXES = st.sampled_from(["data", "model", "fsdp", "expert", "stage"])


@st.composite
def targets(draw) -> Target:
    hosts, devices = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    return Target.parse(draw(st.sampled_from([f"cpu:{hosts * devices}", f"h100:{hosts}x{devices}"])))


@given(st.lists(AXES, min_size=1, max_size=3, unique=True), targets())
def test_every_mesh_uses_every_device_once_and_keeps_inner_axes_inside_hosts(names, target):
    spec = MeshSpec(dict.fromkeys(names, 1) | {names[0]: -1})
    shapes = mesh_shapes(spec, target)
    assert len(set(shapes)) == len(shapes)
    for mesh in shapes:
        info = mesh_info(mesh, target)
        assert sorted(info.device_ids) == list(range(target.num_devices))
        hosts = np.array(info.hosts).reshape([size for _, size in mesh.axes])
        for dim, (name, _) in enumerate(mesh.axes):
            if name not in mesh.crossing:
                assert (hosts == hosts.take([0], axis=dim)).all()


@given(targets())
def test_no_mesh_over_two_axes_that_may_cross_is_left_out(target):
    pairs = [(a, target.num_devices // a) for a in range(1, target.num_devices + 1) if target.num_devices % a == 0]
    shapes = mesh_shapes(MeshSpec.parse("replica=-1,data=1"), target)
    assert sorted(tuple(size for _, size in mesh.axes) for mesh in shapes) == pairs


def test_an_axis_that_the_layout_splits_over_is_never_1():
    shapes = mesh_shapes(MeshSpec.parse("data=-1,model=2"), Target.parse("h100:32x8"))
    assert [str(mesh) for mesh in shapes] == ["data=128,model=2", "data=64,model=4", "data=32,model=8"]


def test_an_axis_may_leave_its_host_where_it_is_declared_to():
    shapes = mesh_shapes(MeshSpec.parse("data=-1,model=2@hosts"), Target.parse("h100:2x2"))
    assert [str(mesh) for mesh in shapes] == ["data=2,model=2@hosts", "data=1,model=4@hosts"]


def test_one_device_makes_no_mesh_of_two():
    assert mesh_shapes(MeshSpec.parse("data=-1,model=2"), Target.parse("cpu:1")) == ()


@pytest.mark.parametrize(("target", "groups"), [("tpu-v5e:4x4*2", 2), ("tpu-v5e:4x4", 1)])
def test_of_tpus_an_inner_axis_stays_inside_a_slice(target, groups):
    parsed = Target.parse(target)
    largest = max(mesh.axis_sizes["model"] for mesh in mesh_shapes(MeshSpec.parse("data=-1,model=2"), parsed))
    assert largest == math.prod(parsed.shape)
    assert len(set(mesh_info(MeshSpec.parse("data=-1"), parsed).hosts)) == groups
