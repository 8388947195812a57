import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

from outlay.core.error_types import TargetError
from outlay.core.jax_compat import without_compilation_cache
from outlay.devices.build import mesh
from outlay.devices.compile_only import target_devices, target_of
from outlay.devices.mesh_info import host_of, simulate_hosts, target_made_for
from outlay.devices.target import Target

pytestmark = pytest.mark.newest


@pytest.mark.some_cases(4, newest=1)
@needs_gpu_compiler
@pytest.mark.parametrize("text", ["h100:1x8", "v100-16gb:2x4", "a100-40gb:1x1", "b200:2x8"])
def test_gpus_are_on_the_hosts_of_the_target(text):
    target = Target.parse(text)
    devices = target_devices(target)
    assert target_devices(text) is devices
    assert len(devices) == target.num_devices
    assert [host_of(device) for device in devices] == [n // target.shape[1] for n in range(len(devices))]
    assert {device.device_kind for device in devices} == {target.hardware.name}
    assert {target_made_for(device) for device in devices} == {target}


@needs_gpu_compiler
def test_pretended_hosts_are_for_simulated_devices_only():
    simulate_hosts(2)
    try:
        assert [host_of(device) for device in target_devices("h100:2x4")] == [0] * 4 + [1] * 4
    finally:
        simulate_hosts(None)


@pytest.mark.some_cases(6, newest=2)
@needs_tpu_compiler
@pytest.mark.parametrize(
    "text", ["tpu-v4:2x2x4", "tpu-v5e:4x4", "tpu-v5e:1x1", "tpu-v5e:4x4*2", "tpu-v5p:2x2x4", "tpu-v6e:2x4"]
)
def test_tpus_are_the_chips_of_the_torus(text):
    target = Target.parse(text)
    devices = target_devices(target)
    places = {(getattr(device, "slice_index", 0), *device.coords[: len(target.shape)]) for device in devices}
    assert len(places) == len(devices) == target.num_devices, "one device a chip"
    assert tuple(max(column) + 1 for column in zip(*places, strict=True)) == (target.num_slices, *target.shape)
    assert len({host_of(device) for device in devices}) == target.num_hosts
    assert devices[0].device_kind in target.hardware.device_kinds


@needs_tpu_compiler
def test_a_torus_that_does_not_exist_is_the_compilers_own_error():
    message = r"no devices of tpu-v5e:3x5: the compiler refuses them\n  .*v5e:3x5.* is not divisible .*\n  fix:"
    with pytest.raises(TargetError, match=message):
        target_devices("tpu-v5e:3x5")


def test_the_devices_of_a_cpu_target_are_simulated():
    assert target_devices("cpu:8") == jax.devices()
    assert target_made_for(jax.devices()[0]) is None


@needs_gpu_compiler
@needs_tpu_compiler
@pytest.mark.parametrize("text", ["h100:1x8", "tpu-v5e:2x4"])
def test_a_mesh_knows_its_target(text):
    assert target_of(mesh(data=8, target=text)) == Target.parse(text)


def test_a_simulated_mesh_is_of_as_many_cpus():
    assert target_of(mesh(data=4, devices=jax.devices()[:4])) == Target.parse("cpu:4")
    assert target_of(AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))) is None


@needs_gpu_compiler
def test_the_gpu_compiler_compiles_beside_the_simulated_devices():
    split = NamedSharding(mesh(data=8, target="h100:1x8"), P("data"))
    shape = jax.ShapeDtypeStruct((64, 16), jnp.float32, sharding=split)
    with without_compilation_cache():  # the tests have one, and JAX cannot load such a program from it
        compiled = jax.jit(lambda x: x.sum(0)).lower(shape).compile()
    assert "all-reduce" in compiled.as_text()
    assert compiled.memory_analysis().argument_size_in_bytes == 64 * 16 * 4 // 8
    assert jax.default_backend() == "cpu"
    assert float(jax.jit(jnp.sum)(jnp.ones(8))) == 8.0


WITHOUT = """
import sys
for module in ("jax_plugins", "libtpu"):
    sys.modules[module] = None
import outlay
from outlay.devices.compile_only import target_devices
for text in ("h100:2x4", "tpu-v5e:2x4"):
    try:
        target_devices(text)
    except outlay.OutlayError as error:
        print(error)
"""


@pytest.mark.any_jax
@pytest.mark.processes
def test_without_its_compiler_a_target_says_what_to_install():
    printed = run(WITHOUT)
    for extra, text in (("gpu-plan", "h100:2x4"), ("tpu-plan", "tpu-v5e:2x4")):
        what = f"no devices of {text}: the {extra[:3].upper()} compiler is not installed"
        loud = f"  or pip install 'outlay[{extra}]', of which JAX complains at every start without the hardware\n"
        assert f"{what}\n  fix: outlay compiler {extra[:3]}\n{loud}  or plan on simulated" in printed


PLANNED = """
import jax
if {first!r} == "backend":
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
import outlay
if {first!r} == "simulate":
    outlay.simulate(8)
for target in {targets!r}:
    mesh = outlay.mesh(data=8, target=target)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((8,), "float32", sharding=split))
    print(len(jax.devices()), jax.default_backend())
"""
GPUS_FIRST = ("h100:1x8", "tpu-v5e:2x4")


@pytest.mark.some_cases(1)
@pytest.mark.processes
@needs_gpu_compiler
@needs_tpu_compiler
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="where there is a GPU, JAX looks at it, and may speak")
@pytest.mark.parametrize(
    ("first", "count", "targets"),
    [
        ("", 1, GPUS_FIRST),
        pytest.param("simulate", 8, GPUS_FIRST[::-1], marks=pytest.mark.any_jax),
        pytest.param("backend", 1, GPUS_FIRST[::-1], marks=pytest.mark.any_jax),
    ],
)
def test_planning_is_quiet_and_leaves_the_devices_that_are_there(first, count, targets):
    printed = run(PLANNED.format(targets=targets, first=first))
    assert printed == f"{count} cpu\n" * 2


def run(program):
    """What a program prints on both streams, on a machine whose user has set nothing and fetched no compiler."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "TPU_"))}
    env["XDG_DATA_HOME"] = os.devnull
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
