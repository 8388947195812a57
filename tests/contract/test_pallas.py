"""The Pallas kernel computes what plain JAX computes, and XLA compiles it for GPUs that are not here.

There is no GPU to run it on: its equations are computed by Pallas's interpreter, in plain JAX.
"""

import functools
import sys

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.contract.fused_brains import (
    DELAYS,
    EACH_DTYPE,
    RULES_IN,
    brain_of,
    every_rule,
    inputs,
    leaves,
    population,
    ran,
)

import outlay
from outlay.brain.delays import N2NDelays
from outlay.brain.fused import pair_change, pair_pass, pallas_pass
from outlay.brain.fused.deferred_neuron import DeferredNeuron
from outlay.brain.fused.pair_pass import _Tried
from outlay.brain.fused.pallas_pass import PallasPass
from outlay.brain.fused.row_equations import NotCompiled, TracedRow
from outlay.brain.learning_rules.hebbian import HebbianRule
from outlay.brain.learning_rules.quadruplet import QuadrupletRule
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.recipes.prepare import prepare


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setitem(pair_change.PASSES, "pallas", functools.partial(PallasPass, interpret=True))
    monkeypatch.setattr(pair_pass, "_passed", set())


def check(brain, name):
    """Compare the pass of a population with JAX's own evaluation of the same equations; on absent devices, trace it."""
    state = jax.eval_shape(brain.init, jax.random.key(0))[name]
    DeferredNeuron(brain, name, brain.modules[name], "pallas").check(state)


def compile_for(target, monkeypatch):
    device = outlay.mesh("devices=-1", target=target).devices.flat[0]
    monkeypatch.setattr(pair_pass, "compiled_for", lambda: device)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", EACH_DTYPE)
def test_every_rule_computes_what_jax_computes(dtype):
    brain = every_rule(dtype)
    for name in (*RULES_IN[dtype], "no_rule"):
        check(brain, name)
    assert len(pair_pass._passed) >= len(RULES_IN[dtype]), "the passes were not compared"


@pytest.mark.any_jax
@pytest.mark.usefixtures("interpreted")
def test_a_pass_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setitem(pallas_pass.OPERATIONS, "add", jax.lax.sub)
    with pytest.raises(NotCompiled, match=r"in its self-test the kernel is off by .* of its largest entry"):
        check(every_rule("float32"), "modulated_zenke")


@functools.cache
def two_pieces():
    """A population whose rows are computed in two pieces, the second of which is not whole."""
    return brain_of({"zenke": population(ZenkeRule(), "linear", N2NDelays(max_delay=3.0))}, "float16")


@pytest.mark.usefixtures("interpreted")
def test_a_run_over_devices_leaves_what_plain_jax_leaves_on_one(monkeypatch):
    monkeypatch.setattr(pallas_pass, "MOST_LANES", 16)
    mesh = outlay.mesh("neurons=3", devices=jax.devices()[:3])
    # All begin with it: else each would compile how it is made.
    start = jax.device_get(jax.jit(two_pieces().init)(jax.random.key(0)))
    plain = ran(two_pieces(), "jax", state=start)
    split = ran(two_pieces(), "pallas", layout="by-neuron", mesh=mesh, state=start)
    assert plain["zenke:out_spikes"].any()
    for path, right in leaves(plain).items():
        rows = leaves(split)[path]
        assert (rows[: len(right)] if right.ndim else rows).tobytes() == right.tobytes(), path


@pytest.mark.any_jax
@pytest.mark.usefixtures("interpreted")
def test_a_pass_whose_operations_do_not_round_is_not_used(monkeypatch):
    monkeypatch.setattr(TracedRow, "rounded", lambda row, dtype: row)
    brain = brain_of({"one": population(QuadrupletRule(), "linear", DELAYS[0])}, "bfloat16", num_cells=1000)
    with pytest.raises(NotCompiled, match=r"is off by .* of its largest entry, more than 0"):
        check(brain, "one")


def one(delays=DELAYS[0]):
    return brain_of({"one": population(HebbianRule(), "linear", delays)}, "bfloat16")


# JAX 0.12 announces the end of the backend that compiles it.
@pytest.mark.any_jax
@pytest.mark.filterwarnings("default:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_it_compiles_for_a_gpu_that_is_not_here():
    recipe = BrainRecipe.of(one(), steps=2, chunk=2, inputs=inputs(2), kernel="pallas")
    mesh = outlay.mesh("devices=1", target="h100:1x1")
    text = prepare(recipe, layout="copies", mesh=mesh, mode=None).program.compiled.as_text()
    assert text.count('custom_call_target="__gpu$xla.gpu.triton"') == 2  # in the loop, and after it


@pytest.mark.filterwarnings("default:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.any_jax), "bfloat16"])
def test_each_rule_that_rounds_compiles_for_a_gpu_that_is_not_here(dtype):
    brain, mesh = every_rule(dtype), outlay.mesh("devices=1", target="h100:1x1")
    shapes, there = jax.eval_shape(brain.init, jax.random.key(0)), NamedSharding(mesh, PartitionSpec())
    for name in RULES_IN[dtype]:
        pairs = DeferredNeuron(brain, name, brain.modules[name], "pallas").pairs(shapes[name])
        inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _Tried(pairs).inputs(pending=True))
        with jax.set_mesh(mesh):
            text = jax.jit(pairs.__call__, in_shardings=there, out_shardings=there).lower(*inputs).compile().as_text()
        assert text.count('custom_call_target="__gpu$xla.gpu.triton"') == 1, name


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("target", "delays", "reason"),
    [
        (None, DELAYS[0], "it is compiled for cpu, and the kernel is for NVIDIA GPUs"),
        ("tpu-v5e:2x2", DELAYS[0], "it is compiled for tpu, and the kernel is for NVIDIA GPUs"),
        ("h100:1x1", N2NDelays(max_delay=40.0), "its delays are of up to 40 steps, and the pass takes up to 30"),
    ],
)
def test_what_it_cannot_compute_has_a_reason(target, delays, reason, monkeypatch):
    if target:
        compile_for(target, monkeypatch)
    with pytest.raises(NotCompiled, match=reason):
        check(one(delays), "one")


@pytest.mark.any_jax
def test_an_operation_that_it_does_not_know_has_a_reason(monkeypatch):
    monkeypatch.delitem(pallas_pass.OPERATIONS, "max")
    compile_for("h100:1x1", monkeypatch)
    with pytest.raises(NotCompiled, match="max of float32, float32"):
        check(one(), "one")


@pytest.mark.any_jax
def test_a_gpu_that_is_too_old_has_a_reason(monkeypatch):
    monkeypatch.setattr(pallas_pass, "compute_capability", lambda device: (7, 0))
    with pytest.raises(NotCompiled, match=r"this GPU has compute capability 7\.0, and 8\.0 is needed"):
        check(one(), "one")


def test_a_jax_without_triton_has_a_reason(monkeypatch):
    monkeypatch.setattr(pallas_pass, "compute_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    with pytest.raises(NotCompiled, match="this JAX has no Pallas for Triton"):
        check(one(), "one")
