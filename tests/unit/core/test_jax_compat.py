import os
import subprocess
import threading

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P
from tests import forks
from tests.unit.cli.command import environment
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

import outlay
from outlay.core import jax_compat, jax_topologies, jax_tracing
from outlay.core.error_types import TargetError
from outlay.core.jax_compat import is_compile_only
from outlay.core.jax_topologies import gpu_topology_devices, tpu_topology_devices
from outlay.core.jax_tracing import fresh_traces, intercept_operations
from outlay.devices.compile_only import gpu_target_config
from outlay.devices.hardware import known_hardware

PROGRAM = """
import jax
from outlay.core.jax_compat import backend_is_started
assert not backend_is_started()
jax.jit(lambda x: x)
assert not backend_is_started()
jax.devices()
assert backend_is_started()
"""


@pytest.mark.processes
def test_the_backend_counts_as_started_from_the_first_use_of_devices():
    command = [forks.python(), "-c", PROGRAM]
    subprocess.run(command, env=environment(JAX_PLATFORMS="cpu"), check=True, timeout=280)


def test_an_interceptor_sees_every_operation_of_its_thread():
    seen = []

    def intercept(primitive, bind, operands, params):
        seen.append(primitive.name)
        return bind(*operands, **params)

    bind = Primitive.bind
    with intercept_operations(intercept), fresh_traces():  # another test may have traced jnp.sin
        jax.eval_shape(lambda x: jnp.sin(x), 1.0)
        other = threading.Thread(target=lambda: jax.eval_shape(jnp.cos, 1.0))
        other.start()
        other.join()
    assert Primitive.bind is bind
    assert [name for name in seen if name in ("sin", "cos")] == ["sin"]


@needs_gpu_compiler
def test_gpus_that_are_not_there_are_on_as_many_hosts_as_asked_for():
    devices = gpu_topology_devices(2, 4, gpu_target_config(known_hardware()["h100"]))
    assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
    assert {device.device_kind for device in devices} == {"NVIDIA H100 80GB HBM3"}
    assert all(map(is_compile_only, devices))
    assert not any(map(is_compile_only, jax.devices()))


@needs_gpu_compiler
def test_a_gpu_compiler_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(jaxlib, "__version__", "0.0.1")
    with pytest.raises(TargetError, match=r"another version than JAX: jax-cuda13-pjrt [\d.]+, jaxlib 0.0.1"):
        jax_topologies.gpu_library()


@needs_tpu_compiler
@pytest.mark.parametrize(("topology", "count"), [("v4:2x2x1", 4), ("v5e:2x4", 8), ("v5p:2x2x1", 4), ("v6e:2x4", 8)])
def test_tpus_that_are_not_there(topology, count):
    chips = {"chip_config_name": "megacore"} if topology.startswith("v4") else {}
    before = dict(os.environ)
    devices = tpu_topology_devices(topology, **chips)
    assert len({tuple(device.coords) for device in devices}) == len(devices) == count
    assert all(map(is_compile_only, devices))
    assert dict(os.environ) == before
    assert {d.slice_index for d in tpu_topology_devices(topology, 2, **chips)} == {0, 1}


SETTLED = """
import jax
from outlay.core.jax_compat import use_cpu_if_alone
use_cpu_if_alone()
print(jax.config.jax_platforms)
"""


@pytest.mark.processes
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="with a GPU JAX has to look")
@pytest.mark.parametrize(("chosen", "settled"), [("", "cpu"), ("cuda,cpu", "cuda,cpu")])
def test_jax_settles_on_the_cpu_where_nobody_chose(chosen, settled):
    command, env = [forks.python(), "-c", SETTLED], environment(JAX_PLATFORMS=chosen)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == settled


def test_what_varies_over_which_axes_is_known_inside_a_region_by_hand():
    seen = []

    def look(x):
        seen.extend(jax_tracing.varying_axes(value) for value in (x, jax.lax.psum(x, "i"), jnp.ones(2)))
        return x

    split = jax.sharding.PartitionSpec(("i", "j"))
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.eval_shape(jax.shard_map(look, mesh=mesh, in_specs=split, out_specs=split), jax.ShapeDtypeStruct((8,), "f4"))
    assert seen == [{"i", "j"}, {"j"}, set()]


def test_what_is_compiled_quickly_computes_the_same():
    x = jnp.linspace(0.1, 2.0, 24, dtype=jnp.float32).reshape(4, 6)

    def several(x):
        return jnp.exp(-x) @ x.T, jnp.tanh(x).sum(0), jnp.sort(x, 0)[::-1]

    quick = jax.jit(several).lower(x).compile(jax_compat.quick_options())(x)
    for one, other in zip(quick, several(np.asarray(x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_process_alone_has_no_coordination_client():
    assert jax_compat.coordination_client() is None  # tests/multiprocess/test_faults.py uses one


def test_programs_of_one_cpu_device_are_cached_and_those_of_several_are_not(tmp_path):
    """XLA would run the collectives of a loaded program in another order on each device, and hang."""
    outlay.mesh(data=8)
    folder = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax_compat.compilation_cache.reset_cache()
    try:
        jax.jit(lambda x: x * 3, out_shardings=jax.NamedSharding(outlay.mesh(data=8), P("data")))(np.ones(8))
        assert not list(tmp_path.iterdir())
        jax.jit(lambda x: x * 5)(1.0)
        assert any("lambda" in file.name for file in tmp_path.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax_compat.compilation_cache.reset_cache()
