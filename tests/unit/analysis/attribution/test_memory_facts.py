"""Memory against the compiler's own figures and against the plan."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler
from tests.unit.report.explain.programs import WIDTH, explain_on, explained, shape, training

from outlay.analysis.attribution.memory_facts import _of_the_runtime
from outlay.analysis.attribution.program_facts import MemoryFacts
from outlay.analysis.findings.memory import too_large
from outlay.analysis.hlo.hlo_memory import host_bytes, peak_bytes
from outlay.analysis.hlo.parse import parse_hlo
from outlay.devices.build import mesh
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel
from outlay.program.make import program
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest

WEIGHTS = 2 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("layout", [None, data_parallel()])
def test_the_compilers_figures(layout):
    program = training(layout)
    memory = explain(program).memory
    stats = program.compiled.memory_analysis()
    assert memory.arguments == stats.argument_size_in_bytes
    assert memory.outputs == stats.output_size_in_bytes
    assert memory.donated == stats.alias_size_in_bytes
    assert memory.temporaries == stats.temp_size_in_bytes
    passed = memory.arguments + memory.outputs - memory.donated
    assert memory.peak == passed + memory.temporaries + memory.constants
    assert memory.constants < 1024


@pytest.mark.parametrize(("layout", "share"), [(None, 8), (data_parallel(), 1)])
def test_the_plans_shares(layout, share):
    program = training(layout)
    memory = explain(program).memory
    assert memory.params == WEIGHTS // share
    assert memory.optimizer == WEIGHTS // share
    assert memory.batch == 2 * 512 * WIDTH * 4 // 8
    assert memory.other_state == 4 + 8  # the step and the key
    assert sum((memory.params, memory.optimizer, memory.batch, memory.other_state)) == memory.arguments


def test_a_leaf_that_nothing_reads_is_held_all_the_same():
    memory = explained(extra=True).memory
    held = memory.params + memory.optimizer + memory.batch + memory.other_state
    assert held == memory.arguments + 512 * 3 * 4 // 8


def test_parts_of_a_function_go_by_the_names_of_its_arguments():
    def step(state, batch):
        return jax.tree.map(lambda leaf: leaf + batch.mean(), state), batch.mean()

    on = mesh(data=8)
    state = {"params": shape(64, 64, on=on), "opt_state": shape(32, 64, on=on), "step": shape(on=on)}
    memory = explain(jax.jit(step, donate_argnums=0), state, shape(64, 8, on=on, spec=P("data"))).memory
    assert (memory.params, memory.optimizer, memory.other_state, memory.batch) == (16384, 8192, 4, 256)


def test_the_largest_arrays_are_named():
    memory = explained(Layout([("**", P()), ("batch.**", P())])).memory
    assert len(memory.largest) == 10
    assert [value.num_bytes for value in memory.largest] == sorted(
        (value.num_bytes for value in memory.largest), reverse=True
    )
    arguments = {value.what: value for value in memory.largest if value.source is None}
    assert arguments["batch.x"].shape == (512, WIDTH)
    computed = [value for value in memory.largest if value.source is not None]
    assert any(value.what == "tanh in layer1, forward" for value in computed)
    assert all(value.source.file.endswith("programs.py") for value in computed)


def test_values_kept_by_a_loop_are_held():
    def scanned(w, x):
        def loss(w):
            return (jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0] ** 2).sum()

        return w - jax.grad(loss)(w)

    explanation = explain_on(mesh(data=8), scanned, ((4, 64, 64), P()), ((4096, 64), P("data")), donate_argnums=0)
    stored = [
        value for value in explanation.memory.largest if value.shape[-1] == 64 and value.num_bytes == 4 * 512 * 64 * 4
    ]
    assert stored
    assert any(value.what.startswith("kept by a loop in ") for value in stored)
    assert all(value.what.endswith("scanned.loss, forward") for value in stored)


def test_the_capacity_is_the_targets():
    memory = explain(training(), target="h100:1x8").memory
    assert memory.capacity == 84_942_979_072
    assert memory.fits


def facts(peak, target="h100:1x8"):
    runtime = _of_the_runtime(peak, Target.parse(target))
    none = dict.fromkeys(("params", "optimizer", "other_state", "batch", "arguments", "outputs", "donated"), 0)
    capacity = Target.parse(target).hardware.memory_bytes
    return MemoryFacts(
        **none, temporaries=peak, constants=0, peak=peak, on_host=0, capacity=capacity, largest=(), **runtime
    )


def test_the_verdict_is_what_jax_can_take(monkeypatch):
    gib = 2**30
    assert facts(50 * gib).verdict == "fits"
    tight = facts(65 * gib)
    assert (tight.verdict, tight.fits, tight.fraction) == ("may not fit", True, 0.85)
    assert (facts(50 * gib).fraction, facts(78 * gib).fraction) == (None, None)
    (finding,) = too_large(tight)
    assert finding.fix.startswith("set XLA_PYTHON_CLIENT_MEM_FRACTION=0.85; or ")
    assert facts(78 * gib).verdict == "does not fit"
    assert "0.75 of the memory is for the program, as JAX does unless" in "\n".join(tight.assumed)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    assert facts(65 * gib).verdict == "fits"
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION")
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".92")
    assert facts(65 * gib).verdict == "fits"
    assert "0.92 of the memory is for the program, by XLA_CLIENT_MEM_FRACTION" in "\n".join(facts(gib).assumed)
    assert facts(15 * gib, "tpu-v5e:4x4").verdict == "fits"
    assert facts(int(15.9 * gib), "tpu-v5e:4x4").verdict == "does not fit"


HOSTED = """HloModule m, is_scheduled=true, input_output_alias={ {1}: (1, {}, may-alias) }

ENTRY %main (x: f32[1024], y: f32[1024]) -> (f32[1024], f32[1024], f32[1024]) {
  %x = f32[1024]{0} parameter(0)
  %y = f32[1024]{0:S(5)} parameter(1)
  ROOT %out = (f32[1024]{0}, f32[1024]{0:S(5)}, f32[1024]{0:S(5)}) tuple(%x, %y, %y)
}
"""


def test_host_memory_is_not_counted_as_the_devices():
    """JAX counts arguments on the host as the device's on GPUs, and apart on TPUs."""
    sizes = {"argument": 8192, "output": 12288, "alias": 4096, "temp": 100, "generated_code": 0}
    together = {f"{name}_size_in_bytes": size for name, size in sizes.items()}
    none = {f"host_{name}_size_in_bytes": 0 for name in sizes}
    counted = SimpleNamespace(**together, **none, peak_memory_in_bytes=16484)
    module = parse_hlo(HOSTED)
    assert peak_bytes(module, counted, is_cpu=False) == 2 * 4096 + 100
    assert host_bytes(module, counted) == 2 * 4096
    apart = {**together, "argument_size_in_bytes": 4096, "output_size_in_bytes": 4096, "alias_size_in_bytes": 0}
    of_host = {**none, "host_argument_size_in_bytes": 4096, "host_output_size_in_bytes": 8192}
    of_host["host_alias_size_in_bytes"] = 4096
    reported = SimpleNamespace(**apart, **of_host, peak_memory_in_bytes=10**9)
    assert peak_bytes(module, reported, is_cpu=False) == 2 * 4096 + 100
    assert host_bytes(module, reported) == 2 * 4096


def test_the_compilers_own_peak_is_taken_where_it_is_less():
    sizes = dict.fromkeys(("argument", "output", "alias", "host_argument", "host_output"), 0)
    stats = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    stats.temp_size_in_bytes, stats.peak_memory_in_bytes = 1000, 700
    module = parse_hlo(HOSTED.replace("S(5)", "S(0)"))
    assert peak_bytes(module, stats, is_cpu=False) == 700
    assert peak_bytes(module, stats) == 1000


BASE = jnp.arange(512 * 512, dtype=jnp.float32).reshape(512, 512) / 512**2
LAYERS = jnp.stack([BASE[:256], BASE[256:]] * 2)


def frozen(state, batch):
    """Like a LoRA: what is trained is small, and the rest is closed over."""

    def loss(state):
        return ((batch @ BASE @ state["down"] @ state["up"]) ** 2).mean()

    return jax.tree.map(lambda x, grad: x - 0.1 * grad, state, jax.grad(loss)(state)), {}


def frozen_layers(state, batch):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h + (h @ w.T) @ w), None), batch, LAYERS)
    return jax.tree.map(lambda x: x * h.mean(), state), {}


def closed_over(step, target=None):
    def init(key):
        return {"down": jnp.ones((512, 4)), "up": jnp.ones((4, 512))}

    on = mesh(data=8, target=target)
    return program(step, init, jax.ShapeDtypeStruct((16, 512), jnp.float32), layout=data_parallel(), mesh=on)


@pytest.mark.compiles
@pytest.mark.parametrize(("step", "constants"), [(frozen, BASE.nbytes), (frozen_layers, LAYERS.nbytes)])
def test_what_a_step_closes_over_is_held_too(step, constants):
    explanation = explain(closed_over(step))
    memory = explanation.memory
    assert memory.constants == pytest.approx(constants, abs=1024)
    assert memory.peak == memory.arguments + memory.outputs - memory.donated + memory.temporaries + memory.constants
    assert "; constants " in str(explanation)
    assert explanation.to_dict()["memory"]["constants"] == memory.constants


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.compiles
@needs_gpu_compiler
@pytest.mark.parametrize("step", [frozen, frozen_layers])
def test_the_peak_of_a_gpu_is_the_compilers(step):
    built = closed_over(step, "h100:1x8")
    memory = explain(built).memory
    assert memory.peak == pytest.approx(built.compiled.memory_analysis().peak_memory_in_bytes, abs=4096)
    assert memory.constants > 2**19
