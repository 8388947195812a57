"""State is born where it lives: no device, and on simulated devices no process, ever holds a full copy more."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import forks
from tests.unit.cli.command import environment

import outlay
from outlay.arrays.init_sharded import _leaves, init_sharded

pytestmark = pytest.mark.newest

SHAPE = (4096, 1024)
FULL = 4 * SHAPE[0] * SHAPE[1]


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, SHAPE)}


def born(layout: outlay.Layout, make: Any = init_sharded) -> Any:
    mesh, shapes = outlay.mesh(data=8), {"w": jax.ShapeDtypeStruct(SHAPE, jnp.float32)}
    return make(init, shapes, layout.plan(shapes, mesh), mesh)


def test_the_compiled_init_never_holds_a_full_leaf_on_a_device() -> None:
    analysis = born(outlay.fsdp(), _leaves).lower(jax.random.key(0)).compile().memory_analysis()
    # The generator works on 64 bits a number, three buffers at a time: of one eighth each, not of the whole.
    assert analysis.output_size_in_bytes == FULL // 8
    assert analysis.output_size_in_bytes + analysis.temp_size_in_bytes < 0.6 * FULL


def test_the_measure_would_see_a_full_leaf() -> None:
    layout = outlay.Layout() + outlay.replicate()
    analysis = born(layout, _leaves).lower(jax.random.key(0)).compile().memory_analysis()
    assert analysis.output_size_in_bytes == FULL


@pytest.mark.compiles
def test_the_numbers_are_those_of_one_device() -> None:
    key = jax.random.key(5)
    np.testing.assert_array_equal(born(outlay.fsdp())(key)["w"], jax.jit(init)(key)["w"])


MEASURED = """
import outlay
outlay.simulate(8)
import jax, jax.numpy as jnp

# To write a compiled program has a peak of its own.
jax.config.update("jax_enable_compilation_cache", False)
NUM_LEAVES, SHAPE = 16, (2048, 2048)  # 256 MiB in all

def init(key):
    return {f"w{i}": jax.random.normal(jax.random.fold_in(key, i), SHAPE) for i in range(NUM_LEAVES)}

def step(state, batch):
    return state, {}

def peak():
    # Not getrusage: its maximum starts from the size of the process that started this one.
    status = open("/proc/self/status").read()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

mesh = outlay.mesh(data=8)
program = outlay.program(step, init, jnp.ones((8, 1)), layout=outlay.fsdp() + outlay.data_parallel(), mesh=mesh)
key = jax.random.key(0)
before = peak()
for make in (lambda: program.init(key), lambda: outlay.arrays.put(jax.jit(init)(key), program.plan, mesh)):
    state = jax.block_until_ready(make())
    print((peak() - before) / (NUM_LEAVES * 4 * SHAPE[0] * SHAPE[1]))
    del state
"""


@pytest.mark.any_jax
@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read as Linux tells it")
def test_a_process_grows_by_the_state_once() -> None:
    """And the measure would see a state that is made whole and then put."""
    # Not optimized, drawing the numbers took most of the time.
    command, env = [forks.python(), "-c", MEASURED], environment(XLA_FLAGS="")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    born, whole = map(float, done.stdout.split())
    # Simulated devices share one memory: the state is there once, plus the generator's work on one leaf.
    assert 1.0 <= born < 1.5
    assert whole > 1.9
