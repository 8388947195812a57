import jax
import pytest
from jax.sharding import AxisType, Mesh
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

from outlay.core.error_types import BackendStartedError, MeshError
from outlay.devices.build import mesh
from outlay.devices.mesh_info import simulate_hosts
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # every program there has a mesh


@pytest.fixture
def two_hosts():
    simulate_hosts(4)
    yield
    simulate_hosts(None)


def ids(built: Mesh) -> list:
    return [[device.id for device in row] for row in built.devices.reshape(built.devices.shape[0], -1)]


def test_a_mesh_of_4_by_2_has_its_devices_in_row_major_order():
    built = mesh(i=4, j=2)
    assert ids(built) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert built == jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    assert built.axis_types == (AxisType.Auto, AxisType.Auto)


@pytest.mark.parametrize("spec", ["data=-1,model=2", MeshSpec({"data": 4, "model": 2})])
def test_a_spec_makes_the_mesh_that_its_sizes_make(spec):
    assert mesh(spec) == mesh(data=4, model=2)


def test_no_global_mesh_is_left_behind():
    mesh(data=8)
    assert jax.sharding.get_abstract_mesh().empty


def test_devices_that_are_passed_are_used_in_their_order():
    devices = jax.devices()[5:1:-1]
    assert ids(mesh(data=-1, model=2, devices=devices)) == [[5, 4], [3, 2]]


def test_inside_axes_stay_on_a_host(two_hosts):
    assert ids(mesh(model=2, data=4)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert ids(mesh(model=2, data=4, over={"model": "hosts", "data": "host"})) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_axis_crosses_hosts_when_asked(two_hosts):
    with pytest.raises(MeshError, match="axis 'model' must stay inside a host, but a host has 4 devices"):
        mesh(model=8)
    assert ids(mesh(model=8, over={"model": "hosts"})) == ids(mesh("model=8@hosts")) == [[i] for i in range(8)]


def test_on_unequal_hosts_inside_axes_stay_on_a_host(two_hosts):
    assert ids(mesh(data=-1, devices=jax.devices()[:6])) == [[0], [1], [2], [3], [4], [5]]
    assert ids(mesh(model=2, data=-1, devices=jax.devices()[:6])) == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(MeshError) as error:
        mesh(model=2, data=2, devices=jax.devices()[1:5])
    assert "axis 'model' must stay inside a group, but a group has 1 devices" in str(error.value)
    assert "the hosts differ: 3 on host 0, 1 on host 1; counted in equal groups of 1, each on one host" in str(
        error.value
    )
    assert "#SBATCH --ntasks-per-node=N" in str(error.value)
    crossing = mesh(model=2, data=2, devices=jax.devices()[1:5], over={"model": "hosts"})
    assert ids(crossing) == [[1, 2], [3, 4]]


def test_axes_that_do_not_use_all_devices_are_refused():
    with pytest.raises(MeshError, match="data=4 x model=3 = 12, but there are 8 devices"):
        mesh(data=4, model=3)


def test_a_mesh_needs_axes():
    with pytest.raises(MeshError, match=r"a mesh needs axes: outlay.mesh\(data=4, model=2\)"):
        mesh()


def test_axes_given_twice_are_refused():
    with pytest.raises(MeshError, match="axes are given twice: as 'data=4' and as model=2; keep one of the two"):
        mesh("data=4", model=2)


def test_declarations_that_contradict_one_another_are_refused():
    with pytest.raises(MeshError, match="declared twice: 'model' over 'host' and 'hosts'"):
        mesh("data=4,model=2@host", over={"model": "hosts"})


@pytest.mark.parametrize("parameter", ["devices", "over", "target"])
def test_an_axis_named_like_a_parameter_goes_into_the_text(parameter):
    with pytest.raises(MeshError, match=rf"not an axis; .* in the text form: outlay.mesh\('{parameter}=8'\)"):
        mesh(**{parameter: 8})
    assert mesh(f"{parameter}=8").axis_names == (parameter,)


def test_a_device_cannot_be_in_a_mesh_twice():
    with pytest.raises(MeshError, match="devices= holds 2 devices, but only 1 different"):
        mesh(data=2, devices=[jax.devices()[0]] * 2)


def test_a_mesh_without_devices_is_refused():
    with pytest.raises(MeshError, match="there are no devices to arrange"):
        mesh(data=-1, devices=[])


@needs_gpu_compiler
def test_on_gpus_of_a_target_inside_axes_stay_on_a_host():
    built = mesh(model=4, data=4, target="h100:2x8")
    assert built.devices.shape == (4, 4)
    assert [[device.process_index for device in row] for row in built.devices.T] == [[0] * 4, [0] * 4, [1] * 4, [1] * 4]
    assert built.axis_types == (AxisType.Auto, AxisType.Auto)
    assert mesh(data=8, target="h100:1x8", explicit=True).axis_types == (AxisType.Explicit,)
    assert mesh(model=4, data=4, target=Target.parse("h100:2x8")) == built


@needs_tpu_compiler
def test_on_tpus_axes_follow_the_torus_across_hosts():
    built = mesh(data=2, model=8, target="tpu-v5p:2x2x4")
    assert [device.coords for device in built.devices[1]] == [[1, y, z] for y in range(2) for z in range(4)]
    assert len({device.process_index for device in built.devices[1]}) == 4
    swapped = mesh(data=4, model=4, target="tpu-v5p:2x4x2")
    assert [device.coords[1] for device in swapped.devices[0]] == [0, 1, 2, 3], "model is the whole of dim 1"


@needs_tpu_compiler
def test_over_slices_go_the_axes_that_may_cross_hosts():
    built = mesh(model=8, data=4, target="tpu-v5e:4x4*2")
    slices = [[device.slice_index for device in row] for row in built.devices.T]
    assert slices == [[0] * 8, [0] * 8, [1] * 8, [1] * 8]
    with pytest.raises(MeshError, match=r"inside a slice, but a slice has 16 devices \(32 on 2 slices\)") as error:
        mesh(model=32, target="tpu-v5e:4x4*2")
    assert "fix: outlay.mesh(data=2, model=16, target='tpu-v5e:4x4*2')" in str(error.value)
    assert mesh("model=32@hosts", target="tpu-v5e:4x4*2").devices[16].slice_index == 1


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"data": 4, "model": 3},
            r"data=4 x model=3 = 12, but h100:1x8 has 8 devices\n"
            r"  fix: outlay.mesh\(data=4, model=2, target='h100:1x8'\) .*\n"
            r"  or let one axis take all remaining devices: outlay.mesh\(data=4, model=-1, target='h100:1x8'\)\n"
            r"  or a target of 12 devices$",
        ),
        (
            {"data": -1, "model": 3},
            r"h100:1x8 has 8 devices, and 8 is not a multiple (.|\n)*or a target of 6 or 9 devices",
        ),
    ],
)
def test_axes_that_do_not_use_the_target_are_refused_in_its_name(axes, message):
    with pytest.raises(MeshError, match=message):
        mesh(**axes, target="h100:1x8")


def test_the_devices_of_a_cpu_target_are_those_that_are_simulated():
    assert mesh(data=4, model=2, target="cpu:8").devices.tolist() == mesh(data=4, model=2).devices.tolist()
    with pytest.raises(BackendStartedError, match=r"outlay.simulate\(16\) comes too late"):
        mesh(data=16, target="cpu:16")


def test_devices_and_a_target_are_one_too_many():
    with pytest.raises(MeshError, match="devices are given twice: as devices= and as target='cpu:8'; keep one"):
        mesh(data=8, target="cpu:8", devices=jax.devices())
