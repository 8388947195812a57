import os
import subprocess
import sys

import pytest
from jax.sharding import AbstractMesh, AxisType
from tests.unit.devices.compilers import needs_gpu_compiler

from outlay.core.error_types import MeshError
from outlay.devices.build import mesh
from outlay.devices.mesh_info import MeshInfo, simulate_hosts


@pytest.fixture
def two_hosts():
    simulate_hosts(4)
    yield
    simulate_hosts(None)


def test_a_simulated_mesh_says_so():
    info = MeshInfo.of(mesh(data=4, model=2))
    assert (info.axis_sizes, info.device_ids, info.hosts) == ({"data": 4, "model": 2}, tuple(range(8)), (0,) * 8)
    assert str(info) == "mesh data=4, model=2 (8 simulated devices)"
    assert MeshInfo.of(info) is info


def test_pretended_hosts_are_reported_in_the_order_of_the_devices(two_hosts):
    info = MeshInfo.of(mesh(model=2, data=4))
    assert (info.device_ids, info.hosts) == ((0, 2, 4, 6, 1, 3, 5, 7), (0, 0, 1, 1, 0, 0, 1, 1))
    assert str(info) == "mesh model=2, data=4 (8 simulated devices on 2 hosts)"


@pytest.mark.processes
def test_the_one_cpu_device_that_a_machine_has_is_attached():
    program = "import outlay; from outlay.devices.mesh_info import MeshInfo; print(MeshInfo.of(outlay.mesh(data=1)))"
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    process = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=280)
    assert process.stdout.strip() == "mesh data=1 (1 cpu device)", process.stderr


def test_an_abstract_mesh_has_names_and_sizes_only():
    info = MeshInfo.of(AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2))
    assert (info.kind, info.platform, info.num_devices) == ("abstract", "", 8)
    assert str(info) == "mesh data=4, model=2 (8 abstract devices)"


def test_coordinates_are_those_of_the_device_array():
    built = mesh(data=4, model=2)
    info = MeshInfo.of(built)
    for position, device in enumerate(built.devices.flat):
        assert built.devices[tuple(info.coordinates(position).values())] == device


def test_what_is_written_reads_back(two_hosts):
    info = MeshInfo.of(mesh(data=4, model=2))
    assert MeshInfo.from_dict(info.to_dict()) == info


def test_axes_and_devices_must_agree():
    with pytest.raises(MeshError, match=r"axes \{'data': 4\} do not hold 2 devices"):
        MeshInfo((("data", 4),), (0, 1), (0, 0), "abstract")


@needs_gpu_compiler
def test_a_compile_only_mesh_says_what_it_is_for():
    info = MeshInfo.of(mesh(data=4, model=2, target="h100:1x8"))
    assert (info.kind, info.platform, info.target) == ("compile-only", "gpu", "h100:1x8")
    assert str(info) == "mesh data=4, model=2 (8 compile-only devices of h100:1x8)"
    assert (
        str(MeshInfo.of(mesh(data=8, target="h100:2x4")))
        == "mesh data=8 (8 compile-only devices of h100:2x4 on 2 hosts)"
    )
    assert MeshInfo.from_dict(info.to_dict()) == info


@pytest.mark.parametrize("mesh", [{"data": 4}, "data=4", None, []])
def test_what_is_no_mesh_is_said(mesh):
    with pytest.raises(MeshError, match=rf"a {type(mesh).__name__} is not a mesh: .*\n  fix: outlay\.mesh\("):
        MeshInfo.of(mesh)
