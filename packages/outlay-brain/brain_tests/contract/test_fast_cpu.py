"""Pairs in machine code compute what plain JAX computes, for every rule, kind of synapses and delays, and dtype."""

import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest
from brain_tests.contract.ab_reference import POPULATIONS, SAMPLED, ab_brain, recorded, recorded_spikes, recorded_start
from brain_tests.contract.fused_brains import (
    DELAYS,
    DTYPES,
    EACH_DTYPE,
    NUM_STEPS,
    assert_near,
    brain_of,
    every_rule,
    inputs,
    leaves,
    population,
    ran,
)

import outlay
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays, NDelays, NoDelays
from outlay.brain.fused import pair_pass, row_code
from outlay.brain.fused.deferred_neuron import DeferredNeuron
from outlay.brain.fused.fused_graph import fused_graph
from outlay.brain.fused.jax_machine_code import at_most_threads
from outlay.brain.initializers import Uniform
from outlay.brain.learning_rules.hebbian import HebbianRule
from outlay.brain.learning_rules.kernel_change import row_of
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.module import BrainError
from outlay.brain.run.run_brain import run_brain
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.synapses import LinearSynapses
from outlay.core.paths import flatten_paths
from outlay.graph.graph_loop import GraphLoop

pytestmark = pytest.mark.newest

BY_NUMPY = ("oja", "quadruplet", "zenke")
"""What test_narrow_floats.py compares with NumPy in float16, as machine code and in plain JAX."""


@pytest.mark.thorough  # test_sparse_steps.py compares each rule with JAX
@pytest.mark.some_cases(1)  # test_narrow_floats.py has narrow numbers
@pytest.mark.any_jax  # as the layouts below
@pytest.mark.parametrize("dtype", EACH_DTYPE)
def test_every_rule_computes_what_plain_jax_computes(dtype):
    brain = every_rule(dtype, left_out=BY_NUMPY if dtype == "float16" else ())
    rules = set(brain.modules) - {"eye", "no_rule"}
    # Both start from it: else each would compile how it is made.
    before = jax.device_get(jax.jit(brain.init)(jax.random.key(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no population falls back
        fast = ran(brain, "fast-cpu", state=before)
    plain = ran(brain, "jax", state=before)
    for name in (*rules, "no_rule"):
        assert plain[f"{name}:out_spikes"].any(), f"{name} never spikes: nothing is compared"
        np.testing.assert_array_equal(fast[f"{name}:out_spikes"], plain[f"{name}:out_spikes"], name)
    changed = 0
    for path, right in leaves(plain).items():
        assert_near(leaves(fast)[path], right, path, DTYPES[dtype])
        changed += path.endswith("kernel") and not np.array_equal(right, dict(flatten_paths(before)[0])[path])
    assert changed == len(rules) >= 2


@functools.cache
def pair():
    zenke = population(ZenkeRule(), "linear", N2NDelays(max_delay=8.0))
    hebbian = population(HebbianRule(), "traced", NoDelays())
    brain = brain_of({"zenke": zenke, "hebbian": hebbian})
    connection = Connection("zenke:out_spikes", "hebbian:in_spikes")
    return dataclasses.replace(brain, connections=(*brain.connections, connection))


@functools.cache
def start():
    """The state with which all of them begin: else each would compile how it is made."""
    return jax.device_get(jax.jit(pair().init)(jax.random.key(0)))


@functools.cache
def whole():
    """Its kernels are recorded as well, which changes nothing: others are without them."""
    record = ["*:out_spikes", "*.synapses.kernel"]
    return run_brain(pair(), steps=NUM_STEPS, inputs=inputs(), kernel="fast-cpu", record=record, state=start())


@functools.cache
def first_half():
    return run_brain(pair(), steps=12, inputs=inputs(12), kernel="fast-cpu", state=start())


def assert_same(run):
    assert set(leaves(run)) == set(leaves(whole()))
    for path, leaf in leaves(whole()).items():
        np.testing.assert_array_equal(leaves(run)[path][: len(leaf)] if leaf.ndim else leaves(run)[path], leaf, path)
    for address in run.recording:
        np.testing.assert_array_equal(run[address], whole()[address], address)


@pytest.mark.thorough  # test_sparse_steps.py has two chunks
@pytest.mark.any_jax
def test_chunks_of_any_length_leave_the_same_bits():
    """What was deferred is made good at the end of each chunk, with the same numbers as within one."""
    assert_same(ran(pair(), "fast-cpu", chunk=16, state=start()))


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize("layout", ["by-neuron", pytest.param("by-module", marks=pytest.mark.any_jax)])
def test_layouts_leave_the_same_bits(layout, monkeypatch):
    monkeypatch.setattr(pair_pass, "_passed", set())  # the self-test is in the midst of tracing for these devices
    mesh = outlay.mesh({"by-neuron": "neurons=3", "by-module": "devices=3"}[layout], devices=jax.devices()[:3])
    assert_same(ran(pair(), "fast-cpu", layout=layout, mesh=mesh, state=start()))


@pytest.mark.any_jax
def test_a_recorded_kernel_is_that_of_its_step():
    kernel = "zenke.synapses.kernel"
    np.testing.assert_array_equal(whole()[kernel][-1], leaves(whole())[kernel])
    np.testing.assert_array_equal(whole()[kernel][11], leaves(first_half())[kernel])
    assert not np.array_equal(whole()[kernel][11], whole()[kernel][10])


@pytest.mark.thorough  # test_run_anywhere.py goes on elsewhere
@pytest.mark.any_jax
def test_a_run_goes_on_with_the_other_kernel():
    begun = jax.device_get(first_half().state)
    late = run_brain(pair(), steps=12, inputs=inputs(12), state=begun, record=["*:out_spikes"])
    np.testing.assert_array_equal(late["zenke:out_spikes"], whole()["zenke:out_spikes"][12:])


@pytest.mark.thorough  # test_brain_parity.py has the recorded run
@pytest.mark.any_jax
def test_every_spike_of_the_recorded_run_is_the_same_with_any_number_of_threads():
    brain, record = ab_brain(), recorded()
    outputs = {name: (name, "out_spikes") for name in POPULATIONS}
    loop = jax.jit(GraphLoop(fused_graph(brain, dataclasses.replace(brain.graph, outputs=outputs), "fast-cpu")))
    runs = []
    for num_threads in (1, 5):
        with at_most_threads(num_threads):
            runs.append(jax.device_get(loop(recorded_start(brain, record), {"drive": record["drive"]})))
    jax.tree.map(np.testing.assert_array_equal, *runs)
    state, results = runs[0]
    for name in POPULATIONS:
        assert int(((results["outputs"][name] != 0) != recorded_spikes(record, name)).sum()) == 0
        np.testing.assert_allclose(state[name]["synapses"]["kernel"][SAMPLED], record[f"{name}.kernelT"], atol=2e-6)


@pytest.mark.thorough  # the layouts above leave the same bits
@pytest.mark.any_jax
def test_the_longest_delays_leave_the_same_bits():
    """Where plain JAX gathers traces, the pass selects them."""
    late = N2NDelays(max_delay=30.0, min_delay=12.0)
    by_input = NDelays(max_delay=30.0, min_delay=12.0)
    populations = {
        "hebbian": population(HebbianRule(), "linear", late),
        "no_rule": population(None, "linear", by_input),
    }
    brain = brain_of(populations, "float16")
    state, steps = jax.device_get(jax.jit(brain.init)(jax.random.key(0))), 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no population falls back
        plain, fast = (
            run_brain(brain, steps=steps, inputs=inputs(steps), state=state, kernel=k) for k in ("jax", "fast-cpu")
        )
    for name in populations:
        before = state[name]["synapses"]["kernel"]
        assert name == "no_rule" or not np.array_equal(plain.state[name]["synapses"]["kernel"], before), name
    for path, leaf in leaves(plain).items():
        np.testing.assert_array_equal(leaves(fast)[path], leaf, path)


@pytest.mark.any_jax
def test_one_pair_beside_the_vectors_of_a_row_leaves_the_next_row_alone():
    """LLVM 22 stores 32 bits where one lane of 16 is to be stored, with AVX-512."""
    neuron = population(HebbianRule(), "linear", NoDelays())
    brain = brain_of({"one": neuron}, "bfloat16", num_cells=row_code.LANES + 1)
    DeferredNeuron(brain, "one", neuron, "fast-cpu").check(jax.eval_shape(brain.init, jax.random.key(0))["one"])


class OwnRule(HebbianRule):
    """A rule that changes the kernel without a `KernelChange`."""

    def step(self, state, kernel, arrivals, spikes, read, *, dt):
        return state, kernel + spikes[:, None]


class ScalingSynapses(LinearSynapses):
    """Synapses that change the kernel themselves."""

    def receive(self, state, brought, *, dt):
        _, current = super().receive(state, brought, dt=dt)
        return {**state, "kernel": 0.9 * state["kernel"]}, current


@dataclasses.dataclass(frozen=True)
class OwnSoma(AdaptiveLeakySoma):
    """A soma whose step returns other leaves than it took."""

    altered: Callable = dict

    def step(self, state, current, *, dt):
        after, spikes = super().step(state, current, dt=dt)
        return self.altered(after), spikes


class ForgetfulRule(HebbianRule):
    """A rule that returns its state without a leaf."""

    def change(self, state, arrivals, spikes, read, *, dt):
        after, change = super().change(state, arrivals, spikes, read, dt=dt)
        return {"post_trace": after["post_trace"]}, change


class CappedRule(HebbianRule):
    """A rule whose equations close over an array of infinities."""

    def changes(self, rate, post, past):
        on_arrival, on_spike = super().changes(rate, post, past)
        most = jnp.full(post.shape, jnp.inf)
        return on_arrival, lambda neuron, *given: jnp.minimum(on_spike(neuron, *given), row_of(most, neuron))


@pytest.mark.any_jax
def test_an_infinite_constant_of_a_rule_is_no_infinity_in_the_state():
    capped = brain_of({"one": population(CappedRule(), "linear", NoDelays())})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the population does not fall back
        run = ran(capped, "fast-cpu")
    assert run["one:out_spikes"].any()


ALTERED = {
    "a leaf less": lambda state: {name: leaf for name, leaf in state.items() if name != "potential"},
    "a leaf more": lambda state: {**state, "charge": state["potential"]},
    "another dtype": lambda state: {**state, "potential": state["potential"].astype("float16")},
    "another shape": lambda state: {**state, "potential": state["potential"][None]},
    "a rule's leaf less": None,
}


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.parametrize("how", ALTERED)
def test_a_state_that_a_step_does_not_return_as_it_took_it_is_refused_alike_by_each_kernel(how):
    """Compiled pairs merge what a step returns into the state: a leaf that is left out would stay as it was."""
    neuron = population(HebbianRule(), "linear", NoDelays())
    own = {"soma": OwnSoma(altered=ALTERED[how])} if ALTERED[how] else {"learning_rule": ForgetfulRule()}
    brain, messages = brain_of({"one": dataclasses.replace(neuron, **own)}), []
    for kernel in ("jax", "fast-cpu"):
        with pytest.raises(BrainError, match=r"one\.\w+\.\w+\n    step took .* and returned ") as refused:
            ran(brain, kernel)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


@pytest.mark.any_jax
def test_what_cannot_be_compiled_runs_in_plain_jax_and_one_warning_names_it_with_the_reason():
    late = population(None, "linear", N2NDelays(max_delay=31.0))
    own = population(OwnRule(), "linear", DELAYS[0])
    compiled = population(None, "linear", NoDelays())
    scaled = dataclasses.replace(compiled, synapses=ScalingSynapses(Uniform(scale=2.0)))
    in_plain_jax = {"late": late, "own": own, "scaled": scaled}
    brain = brain_of({**in_plain_jax, "compiled": compiled, "later": late})
    with pytest.warns(UserWarning, match="in plain JAX") as warned:
        fast = ran(brain, "fast-cpu", chunk=NUM_STEPS // 3)  # three chunks, one warning
    assert [str(one.message) for one in warned] == [
        "late, later run in plain JAX, not as fast-cpu: its delays are of up to 31 steps, and the pass takes up to 30; "
        "own runs in plain JAX, not as fast-cpu: OwnRule does not say its equations as a KernelChange; "
        "scaled runs in plain JAX, not as fast-cpu: "
        "ScalingSynapses.receive changes the kernel or the names in its state"
    ]
    # What a population draws and reads is its own, whatever others there are.
    for path, leaf in leaves(ran(brain_of(in_plain_jax), "jax")).items():
        np.testing.assert_array_equal(leaves(fast)[path], leaf, path)


def fallback(reason, dtype="float32"):
    """Both populations run in plain JAX for this reason; their machine code is none that was tried before."""
    hebbian = population(HebbianRule(pre_tau=21.0, eta=0.123), "linear", NDelays(max_delay=3.0))
    brain = brain_of({"one": hebbian, "two": hebbian}, dtype)
    graph, state = fused_graph(brain, brain.graph, "fast-cpu"), jax.eval_shape(brain.init, jax.random.key(0))
    with pytest.warns(UserWarning, match="in plain JAX") as warned:
        jax.eval_shape(GraphLoop(graph), state, inputs())
    who = "one, two" if reason.startswith("in its self-test") else "all populations"
    (text,) = (str(one.message) for one in warned)
    assert re.fullmatch(f"{who} run in plain JAX, not as fast-cpu: {reason}", text), text


def test_machine_code_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(pair_pass, "_passed", set())
    monkeypatch.setitem(row_code.ARITHMETIC, "add", "fsub")
    fallback("in its self-test the kernel is off by .* of its largest entry, more than 1e-05")


@pytest.mark.any_jax
def test_without_its_extra_the_reason_is_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    fallback(r"llvmlite is not installed \(pip install 'outlay\[fast-cpu\]'\)")


@pytest.mark.any_jax
def test_an_llvmlite_that_is_too_old_has_a_reason(monkeypatch):
    monkeypatch.setattr(llvm, "llvm_version_info", (14, 0, 6))
    fallback(r"llvmlite has LLVM 14, and 15 is needed \(pip install -U llvmlite\)")


@pytest.mark.any_jax
def test_a_processor_that_llvm_does_not_know_has_a_reason(monkeypatch):
    def unknown():
        raise RuntimeError("failed to get host cpu features.")

    monkeypatch.setattr(llvm, "get_host_cpu_features", unknown)
    fallback("LLVM does not know this processor: failed to get host cpu features.")


@pytest.mark.any_jax
@pytest.mark.parametrize("kind", ["rows", "calls"])
def test_an_llvm_that_does_not_take_the_code_has_a_reason(kind, monkeypatch):
    parse = llvm.parse_assembly

    def refuses(code):
        if ("%next_i" in code) == (kind == "rows"):
            raise RuntimeError("LLVM IR parsing error\n<string>:12:3: error: expected type\n")
        return parse(code)

    monkeypatch.setattr(llvm, "parse_assembly", refuses)
    fallback(f"this LLVM, {llvm.llvm_version_info[0]}, does not take the code: LLVM IR parsing error")


@pytest.mark.any_jax
def test_a_processor_without_float16_has_a_reason(monkeypatch):
    features = llvm.get_host_cpu_features()
    features["f16c"] = False
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    fallback("this processor does not convert float16", dtype="float16")


@pytest.mark.any_jax
@pytest.mark.parametrize(("target", "platform"), [("h100:1x1", "gpu"), ("tpu-v5e:2x2", "tpu")])
def test_another_platform_has_a_reason(target, platform, monkeypatch):
    monkeypatch.setattr(pair_pass, "compiled_for", lambda: outlay.mesh("devices=-1", target=target).devices.flat[0])
    fallback(f"it is compiled for {platform}")


@pytest.mark.any_jax
def test_a_kernel_that_there_is_not_is_refused():
    with pytest.raises(BrainError, match="there is no kernel 'fast'\n  fix: one of jax, fast-cpu"):
        ran(pair(), "fast")
