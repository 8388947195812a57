"""Steps in which few pairs are reached by a spike leave them out, and leave the same bits as those that do not."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from brain_tests.contract.fused_brains import DELAYS, DTYPES, PLAIN_RULES, RULES, brain_of, leaves, population

from outlay.brain.connections import Connection
from outlay.brain.fused import pair_pass, sparse_loops, sparse_steps
from outlay.brain.fused.deferred_neuron import DeferredNeuron
from outlay.brain.fused.row_equations import NotCompiled
from outlay.brain.fused.sparse_steps import Unreached
from outlay.brain.learning_rules.hebbian import HebbianRule
from outlay.brain.learning_rules.quadruplet import BoundedQuadrupletRule
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.registry import registered
from outlay.brain.run.run_brain import run_brain

NUM_CELLS, NUM_STEPS = 83, 40
"""Five vectors of pairs, of which four go on together, and some that are left."""
OF_RULES = {rule: Unreached() for rule in RULES}
OF_RULES |= {rule: Unreached(bounds=(1, 2)) for rule in RULES if "bounded" in rule}
OF_RULES |= {rule: Unreached(goes_on=True) for rule in RULES if "zenke" in rule}
OF_RULES |= {rule: None for rule in RULES if "oja" in rule or rule == "btsp"}
"""What their equations say of pairs that no spike reaches: those of Oja's rule and of BTSP's change in any step."""
WITH_A_FACTOR = set(RULES) - set(PLAIN_RULES)


def one(rule, delays, dtype="float32"):
    """A population with a rule, and the pass over its pairs."""
    neuron = population(registered(rule, kind="learning_rule")() if rule else None, "linear", delays)
    brain = brain_of({"one": neuron}, dtype, num_cells=NUM_CELLS)
    deferred = DeferredNeuron(brain, "one", neuron, "fast-cpu")
    state = jax.eval_shape(brain.init, jax.random.key(0))["one"]
    return deferred, state


@pytest.mark.thorough  # runs below leave the same bits
@pytest.mark.parametrize("delays", DELAYS, ids=lambda delays: type(delays).__name__)
def test_each_pass_with_each_rule_passes_its_self_test(delays):
    """It compares the pass with JAX, steps that leave out pairs with those that do not, and threads with one.

    Each plain rule meets each kind of delays and each dtype, a rule with a factor one of both;
    test_fast_cpu.py runs each rule.
    """
    dtypes = itertools.islice(itertools.cycle(DTYPES), DELAYS.index(delays), None)
    for number, (rule, dtype) in enumerate(zip((None, *RULES), dtypes, strict=False)):
        if rule in WITH_A_FACTOR and number % len(DELAYS) != DELAYS.index(delays):
            continue
        deferred, state = one(rule, delays, dtype)
        deferred.check(state)
        pairs = deferred.pairs(state)
        assert pairs.name in pair_pass._passed
        assert (pairs.sparse and pairs.sparse.unreached) == (OF_RULES[rule] if rule else Unreached()), rule


def refused(rule, delays):
    deferred, state = one(rule, delays)
    with pytest.raises(NotCompiled, match="in its self-test a step that leaves out pairs computes something else"):
        deferred.check(state)


EACH_KIND = list({OF_RULES[rule]: rule for rule in PLAIN_RULES if OF_RULES[rule]}.values())
"""A rule for each of what equations say: the self-test and the loop that it tests are the same for all of a kind."""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("delays", DELAYS, ids=lambda delays: type(delays).__name__)
def test_a_pass_that_overlooks_arrivals_is_not_used(delays, monkeypatch):
    """In half of the lanes."""
    monkeypatch.setattr(sparse_loops, "ANY_LANE", 0x00FF)
    for rule in (None, *EACH_KIND)[DELAYS.index(delays) :: 2]:  # each kind with one or two of the delays
        refused(rule, delays)


@pytest.mark.thorough  # one that overlooks them is above
def test_a_pass_that_sees_arrivals_in_another_step_is_not_used(monkeypatch):
    bit = sparse_loops.bit
    monkeypatch.setattr(sparse_loops, "bit", lambda code, words, mask: bit(code, words, 2 * mask))
    for rule in (None, "zenke"):
        refused(rule, DELAYS[0])


def test_a_pass_that_overlooks_post_synaptic_spikes_is_not_used(monkeypatch):
    monkeypatch.setattr(sparse_loops.SparseLoop, "is_whole", "%is_whole")
    for rule in EACH_KIND:
        refused(rule, DELAYS[0])


@pytest.mark.thorough  # one that overlooks arrivals is above
def test_a_pass_that_forgets_a_step_of_what_goes_on_is_not_used(monkeypatch):
    missed = sparse_loops.SparseLoop._missed

    def less(self, code):
        last, steps = missed(self, code)
        return last, code.emit(f"call i8 @llvm.usub.sat.i8(i8 {steps}, i8 1)", True)

    monkeypatch.setattr(sparse_loops.SparseLoop, "_missed", less)
    refused("zenke", DELAYS[0])


@functools.cache
def brain():
    """Each kind of what a step does to pairs that no spike reaches, with each kind of delays.

    Bounds depend on whether a pre neuron is inhibitory, which is seen when it first spikes.
    """
    bounded = BoundedQuadrupletRule(max_clip=(0.5, 0.2, 0.3, 0.1))
    each = {"hebbian": HebbianRule(), "bounded": bounded, "zenke": ZenkeRule(), "no_rule": None}
    delays = itertools.cycle(DELAYS)
    whole = brain_of({n: population(rule, "linear", next(delays)) for n, rule in each.items()}, num_cells=NUM_CELLS)
    connection = Connection("hebbian:out_spikes", "bounded:in_spikes")
    return dataclasses.replace(whole, connections=(*whole.connections, connection))


def run(monkeypatch, most_reached, state, chunk=NUM_STEPS):
    monkeypatch.setattr(sparse_steps, "MOST_REACHED", dict.fromkeys((False, True), most_reached))
    light = np.zeros((NUM_STEPS, NUM_CELLS), np.float32)
    light[::3] = 0.2
    inputs = {"light": light, "factor": np.full((NUM_STEPS, 1), 0.7, np.float32)}
    record = ["*:out_spikes", "zenke.learning_rule.target_trace", "zenke.synapses.kernel"]
    given = {"inputs": inputs, "record": record, "stride": 4, "state": state}
    return run_brain(brain(), steps=NUM_STEPS, kernel="fast-cpu", chunk=chunk, **given)


def test_runs_that_leave_out_pairs_leave_the_same_bits(monkeypatch):
    """Also what is recorded of pairs that are left out, and where a chunk ends."""
    start = jax.device_get(jax.jit(brain().init)(jax.random.key(0)))
    dense, sparse = run(monkeypatch, -1.0, start), run(monkeypatch, 1.0, start, chunk=NUM_STEPS // 2)
    for name in brain().modules:
        spikes = dense.recording.get(f"{name}:out_spikes")
        assert spikes is None or 0 < np.mean(spikes != 0) < 0.3, name
    for path, leaf in leaves(dense).items():
        assert leaves(sparse)[path].tobytes() == leaf.tobytes(), path
    for address, values in dense.recording.items():
        assert np.asarray(sparse[address]).tobytes() == np.asarray(values).tobytes(), address


def test_a_step_is_dense_where_bounds_changed_and_before_all_kernels_are_within_them():
    steps, is_there, bounds = sparse_steps.SparseSteps(Unreached(bounds=(0,)), 5), np.array(True), [np.zeros(3, bool)]
    within, not_yet = ({"numbers": np.array([0, 0, 0, num], np.uint8), "bounds": bounds} for num in (1, 0))
    assert steps.step(within, is_there, is_there, bounds)["numbers"].tolist() == [sparse_steps.SPARSE, 1, 1, 1]
    assert steps.step(within, is_there, is_there, [np.array([False, True, False])])["numbers"][0] == sparse_steps.DENSE
    assert steps.step(not_yet, is_there, is_there, bounds)["numbers"].tolist() == [sparse_steps.DENSE, 0, 0, 1]
