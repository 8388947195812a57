"""Programs for absent TPUs are compiled in another process, whose end is an answer."""

import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from tests.unit.devices.compilers import needs_tpu_compiler

import outlay
from outlay.core import jax_tpu_compiler
from outlay.core.jax_compat import text_with_constants
from outlay.core.jax_topologies import tpu_topology_devices
from outlay.devices.compile_only import target_devices
from outlay.errors import CompilerAbortError
from outlay.program.compiler_aborts import abort_error

pytestmark = [needs_tpu_compiler, pytest.mark.newest]
TOPOLOGY = ("v5e:2x2", 1)


def compiled_for(devices, function=lambda w, x: jnp.tanh(x @ w) + jnp.arange(128.0)[None] ** 2, size=128):
    mesh = Mesh(np.array(devices[:2]), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("x"))
    shape = jax.ShapeDtypeStruct((size, size), jnp.float32)
    return jax.jit(function, in_shardings=(split, split)).lower(shape, shape).compile()


@pytest.fixture(scope="module")
def devices():
    return target_devices("tpu-v5e:2x2")


def facts(compiled):
    memory = compiled.memory_analysis()
    return {
        "text": compiled.as_text(),
        "constants": text_with_constants(compiled),
        "memory": {name: getattr(memory, name) for name in dir(memory) if not name.startswith("_")},
        "costs": compiled.cost_analysis(),
        "formats": [str(one) for one in jax.tree.leaves((compiled.input_formats, compiled.output_formats))],
    }


def test_what_comes_back_is_what_a_compiler_in_this_process_gives(devices):
    here = tpu_topology_devices(*TOPOLOGY, chips_per_host_bounds=(2, 2, 1))
    assert here[0].client not in jax_tpu_compiler._topologies
    of_another, of_this = [facts(compiled_for(each)) for each in (devices, here)]  # from one line, which texts name
    assert of_another == of_this


def test_a_refusal_is_jaxs_own_error(devices):
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        compiled_for(devices, jnp.add, size=2**18)


def aborting(tokens):
    """A step on bytes that the compiler of v5p takes for its own fault: it converts them where it recomputes."""

    def loss(w, tokens):
        logits = (tokens[..., None] * w[None, None]).astype(jnp.bfloat16) @ jnp.ones((128, 256), jnp.bfloat16)

        @jax.checkpoint
        def own(logits):
            chosen = jnp.arange(256)[None, None] == tokens[..., None]  # the line
            exact = logits.astype(jnp.float32)
            return jax.nn.logsumexp(exact, axis=-1) - jnp.where(chosen, exact, 0.0).sum(axis=-1)

        return own(logits).sum()

    def step(state, batch):
        return state - jax.grad(loss)(state, batch["tokens"]), {}

    everywhere = [("**", jax.P()), ("batch.**", jax.P())]
    mesh = outlay.mesh(data=1, target="tpu-v5p:1x1x1")
    return outlay.program(step, lambda key: jnp.ones(128), {"tokens": tokens}, layout=everywhere, mesh=mesh)


@pytest.mark.any_jax  # a later libtpu compiles it
def test_an_abort_names_the_line_and_the_next_program_compiles():
    with pytest.raises(CompilerAbortError) as error:
        outlay.explain(aborting(np.zeros((32, 128), np.uint8)))
    with open(__file__) as file:
        (line,) = [number for number, text in enumerate(file, 1) if text.rstrip().endswith("# the line")]
    assert f"at {__file__}:{line}\n" in str(error.value)
    assert "SIGABRT: Check failed" in str(error.value)
    assert "fix: " in str(error.value)
    assert outlay.explain(aborting(np.zeros((32, 128), np.int32))).fits


@pytest.mark.any_jax  # how it ended is the system's word
@pytest.mark.parametrize(("last", "is_fault"), [("SIGTERM: Raising signal 15", False), ("SIGABRT: Check failed", True)])
def test_a_compiler_that_was_ended_from_outside_is_not_at_fault(last, is_fault):
    error = abort_error(CompilerAbortError(last), jax.jit(jnp.sin).lower(1.0))
    message = str(error)
    assert last in message
    assert error.is_from_outside != is_fault
    assert ("it is a fault of the compiler" in message) == is_fault
    assert ("was ended from outside" in message) != is_fault


@pytest.mark.thorough  # an abort is said above
@pytest.mark.any_jax  # its end is the system's
def test_a_killed_compiler_is_said_and_started_anew(devices):
    compiled_for(devices, lambda w, x: w / x)
    jax_tpu_compiler._process._process.kill()
    with pytest.raises(CompilerAbortError, match="SIGKILL"):
        compiled_for(devices, lambda w, x: w - x)
    assert "subtract" in compiled_for(devices, lambda w, x: w - x).as_text()


def compile_for_ever(devices):
    while True:
        compiled_for(devices, lambda w, x: w * x)


def test_an_interrupt_ends_the_compiler_and_its_answer_is_not_taken_for_another(devices):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    compiled_for(devices, lambda w, x: w % x)  # the process is there
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interrupted):
            compile_for_ever(devices)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "add" in compiled_for(devices, lambda w, x: w + x).as_text()


@pytest.mark.any_jax  # forks are Python's
def test_a_fork_does_not_take_the_answers_of_its_parent(devices):
    compiled_for(devices, lambda w, x: w - 2 * x)
    of_parent = jax_tpu_compiler._process._process
    jax_tpu_compiler._process.leave_to_parent()  # as a fork does at once
    assert "add" in compiled_for(devices, lambda w, x: w + 3 * x).as_text()
    assert jax_tpu_compiler._process._process.pid != of_parent.pid
    assert of_parent.poll() is None, "its process goes on"
    of_parent.communicate()


@pytest.mark.any_jax  # its end is the system's
@pytest.mark.processes
def test_the_compiler_ends_with_the_process_that_asks():
    program = (
        "import jax; from outlay.devices.compile_only import target_devices; d = target_devices('tpu-v5e:2x2')\n"
        "from jax.sharding import SingleDeviceSharding\n"
        "s = jax.ShapeDtypeStruct((8,), 'float32', sharding=SingleDeviceSharding(d[0]))\n"
        "jax.jit(lambda x: x + 1).lower(s).compile(); print('compiled', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"compiled\n"
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    child.wait(timeout=280)
