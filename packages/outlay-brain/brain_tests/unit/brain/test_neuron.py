"""Neurons of every kind against the same equations written with loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brain_tests.unit.brain import plain_equations as plain
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays, NDelays, NoDelays
from outlay.brain.encoders import LinearSpiker
from outlay.brain.initializers import Constant, SparseUniform
from outlay.brain.learning_rules.hebbian import HebbianRule, OjaRule, ThreeFactorRule
from outlay.brain.learning_rules.quadruplet import BoundedQuadrupletRule, QuadrupletRule
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.registry import registered, registered_names
from outlay.brain.reshape import Concat, Sampler
from outlay.brain.somas.leaky import (
    AdaptiveLeakySoma,
    LeakySoma,
    RefractoryLeakySoma,
    StrictRefractoryLeakySoma,
)
from outlay.brain.synapses import LinearSynapses, RDTracedSynapses, RFSTracedSynapses, TracedSynapses
from outlay.core.paths import matches

UNITS, INPUTS, STEPS = 5, 7, 40
SOMAS = {
    "leaky": LeakySoma,
    "refractory": RefractoryLeakySoma,
    "strict": StrictRefractoryLeakySoma,
    "adaptive": AdaptiveLeakySoma,
}
RULES = {
    "zenke": ZenkeRule(pre_tau=7.0, post_tau=9.0, post_slow_tau=30.0, target_tau=50.0, eta=3.0, a=2.0, b=-3.0, c=-30.0),
    "hebbian": HebbianRule(pre_tau=7.0, post_tau=9.0, eta=5.0),
    "oja": OjaRule(post_tau=9.0, eta=20.0),
    "quadruplet": QuadrupletRule(q_alpha=-0.6, q_beta=5.0, q_gamma=-0.4, q_delta=7.0, eta=3.0),
    "three_factor": ThreeFactorRule(gamma=5.0),
}


def drawn_inputs(seed=0, num_inputs=INPUTS, steps=STEPS):
    """Spikes of pre neurons of which some are inhibitory, (steps, pre)."""
    draw = np.random.default_rng(seed)
    sign = np.where(draw.random(num_inputs) < 0.3, -1, 1)
    return ((draw.random((steps, num_inputs)) < 0.25) * sign).astype(np.int8)


def run(neuron, spikes, *, dt=1.0, read=None, dtype=jnp.float32, state=None):
    """The first state, the last, and by step the states and the output spikes."""
    read = {} if read is None else {port: jnp.float32(value) for port, value in read.items()}
    shapes = {"in_spikes": (spikes.shape[1],), **dict.fromkeys(read, ())}
    first = neuron.init(jax.random.key(1), shapes, dt=dt, dtype=dtype) if state is None else state

    def step(state, spikes):
        state, outputs = neuron.step(state, {"in_spikes": spikes, **read}, dt=dt)
        return state, (state["soma"]["potential"], state["synapses"]["kernel"], outputs["out_spikes"])

    last, seen = jax.jit(lambda state, spikes: jax.lax.scan(step, state, spikes))(first, jnp.asarray(spikes))
    return first, last, jax.device_get(seen)


def run_plain(neuron, kind, rule_kind, first, spikes, *, dt=1.0, read=None, tracer=None):
    """The same with loops: potentials, kernels and output spikes by step."""
    num_inputs = spikes.shape[1]
    kernel = np.asarray(first["synapses"]["kernel"], np.float64).copy()
    delays = np.asarray(first["delays"]["delays"]) if "delays" in first["delays"] else None
    somas = [plain.Soma(neuron.soma, kind, dt) for _ in range(neuron.units)]
    pairs = [(i, j) for i in range(neuron.units) for j in range(num_inputs)]
    rules = {pair: plain.Rule(neuron.learning_rule, rule_kind, dt) for pair in pairs} if rule_kind else {}
    tracers = {pair: tracer() for pair in pairs} if tracer else {}
    potentials, kernels, fired = [], [], []
    for step in range(len(spikes)):
        value = {(i, j): plain.arrivals(spikes, delays, step, i, j) for i, j in pairs}
        current = [0.0] * neuron.units
        for i, j in pairs:
            brought = kernel[i, j] * value[i, j]
            current[i] += tracers[i, j](brought) if tracer else brought
        z = [somas[i](current[i]) for i in range(neuron.units)]
        # Nothing hangs by a rounding: a spike that might or might not be would make the comparison void.
        assert min(soma.margin for soma in somas) > 1e-4
        for pair, rule in rules.items():
            kernel[pair] = rule(kernel[pair], abs(value[pair]), float(z[pair[0]]), read)
        potentials.append([soma.v for soma in somas])
        kernels.append(kernel.copy())
        fired.append(z)
    return np.asarray(potentials), np.asarray(kernels), np.asarray(fired)


def check(neuron, kind, rule_kind="", *, dt=1.0, read=None, tracer=None, seed=0):
    spikes = drawn_inputs(seed)
    first, _, (potentials, kernels, fired) = run(neuron, spikes, dt=dt, read=read)
    expected = run_plain(neuron, kind, rule_kind, first, spikes, dt=dt, read=read, tracer=tracer)
    np.testing.assert_array_equal(fired != 0, expected[2])
    np.testing.assert_allclose(potentials, expected[0], atol=2e-3, rtol=1e-5)
    np.testing.assert_allclose(kernels, expected[1], atol=1e-4, rtol=1e-5)
    assert expected[2].any()
    return kernels, fired


def soma_of(kind, **changes):
    settings = {"resistance": 40.0, **({} if kind == "leaky" else {"cooldown": 2.0}), **changes}
    return SOMAS[kind](**({"threshold_delta": 10.0} if kind == "adaptive" else {}), **settings)


SYNAPSES = LinearSynapses(SparseUniform(density=0.8))


@pytest.mark.some_cases(3)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("kind", "dt", "cooldown"),
    [
        *(("leaky", dt, None) for dt in (1.0, 0.5)),
        *(("refractory", *each) for each in ((1.0, 2.0), (0.5, 1.6), (0.1, 0.33), (1.0, 2.5))),
        *(("strict", *each) for each in ((0.5, 1.6), (1.0, 2.5))),
        *(("adaptive", *each) for each in ((1.0, 2.0), (0.1, 0.33))),
    ],
)
def test_leaky_somas(kind, dt, cooldown):
    """How many steps a cooldown takes is computed in one place, which each way to round is tried with once."""
    changes = {} if kind == "leaky" else {"cooldown": cooldown}
    check(Neuron(UNITS, soma=soma_of(kind, resistance=40.0 / dt, **changes), synapses=SYNAPSES), kind, dt=dt)


@pytest.mark.parametrize(
    ("delays", "dt"),
    [
        *((each, 0.5) for each in (NoDelays(), NDelays(6.0), N2NDelays(6.0), N2NDelays(25.0))),
        *((each, 1.0) for each in (N2NDelays(6.0), N2NDelays(70.0))),
    ],
    ids=repr,
)
def test_delays_carry_spikes_and_their_traces(delays, dt):
    soma = soma_of("refractory", resistance=120.0)
    neuron = Neuron(UNITS, soma=soma, synapses=SYNAPSES, delays=delays, learning_rule=RULES["hebbian"])
    kernels, _ = check(neuron, "refractory", "hebbian", dt=dt)
    assert not np.allclose(kernels[-1], kernels[0])


@pytest.mark.parametrize("name", RULES)
def test_learning_rules(name):
    rule, dt = RULES[name], 0.5  # of 1 ms, it would not show where dt is left out
    read = dict.fromkeys(rule.reads, 0.7)
    neuron = Neuron(UNITS, soma=soma_of("leaky"), synapses=SYNAPSES, delays=N2NDelays(5.0), learning_rule=rule)
    kernels, fired = check(neuron, "leaky", name, dt=dt, read=read)
    # Kernels moved, some to 0, in steps with output spikes and in steps without.
    assert np.abs(np.diff(kernels, axis=0)).max() > 1e-3
    assert fired.any()
    assert not fired.any(1).all()


# The target's equation is cubic: settings that let kernels grow without bounds let it grow faster than any number.
@pytest.mark.compiles
@settings(deadline=None, max_examples=3, phases=(Phase.explicit, Phase.generate))
@given(seed=st.integers(0, 99), a=st.floats(-3, 3), b=st.floats(-9, 0), c=st.floats(-9, 0), d=st.floats(-1, 0.5))
def test_zenkes_rule_with_any_weights(seed, a, b, c, d):
    rule = ZenkeRule(post_tau=5.0, target_tau=200.0, eta=0.1, a=a, b=b, c=c, d=d)
    soma = LeakySoma(resistance=41.3)
    neuron = Neuron(UNITS, soma=soma, synapses=LinearSynapses(Constant(0.9)), delays=N2NDelays(4.0), learning_rule=rule)
    spikes = drawn_inputs(seed)
    first, last, (_, kernels, fired) = run(neuron, spikes)
    # What fired is taken from the run, so that only the rule is compared.
    kernel, delays = np.asarray(first["synapses"]["kernel"], np.float64).copy(), np.asarray(first["delays"]["delays"])
    for i in range(UNITS):
        for j in range(INPUTS):
            pair = plain.Rule(rule, "zenke", 1.0)
            for step in range(STEPS):
                s = abs(plain.arrivals(spikes, delays, step, i, j))
                kernel[i, j] = pair(kernel[i, j], s, float(fired[step, i] != 0), None)
            assert abs(float(last["learning_rule"]["target_trace"][i, j]) - pair.target) < 1e-3
    np.testing.assert_allclose(kernels[-1], kernel, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("synapses", "tracer"),
    [
        (
            TracedSynapses(SparseUniform(density=0.8), tau=3.0, scale=0.7, base=0.02),
            lambda: plain.Tracer(3.0, 0.7, 0.02, dt=0.5),
        ),
        (
            RDTracedSynapses(SparseUniform(density=0.8), tau_rise=2.0, tau_decay=6.0, scale_rise=0.9, base_decay=0.01),
            lambda: plain.RDTracer(2.0, 6.0, 0.9, 1.0, 0.0, 0.01, dt=0.5),
        ),
        (
            RFSTracedSynapses(SparseUniform(density=0.8), alpha=0.6, tau_slow_decay=20.0, scale_slow_decay=1.2),
            lambda: plain.RFSTracer(0.6, plain.RDTracer(1.0, 5.0, dt=0.5), plain.RDTracer(1.0, 20.0, 1.0, 1.2, dt=0.5)),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fading_synapses_are_the_sum_of_a_trace_of_each_pair(synapses, tracer):
    neuron = Neuron(UNITS, soma=soma_of("leaky"), synapses=synapses, delays=N2NDelays(3.0))
    check(neuron, "leaky", dt=0.5, tracer=tracer)


# What a rule keeps by neuron is the same with any delays; with those of pairs each rule is tried.
@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("delays", "name"),
    [(each, "zenke") for each in (NDelays(6.0), NoDelays())] + [(N2NDelays(6.0), name) for name in RULES],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_some_of_the_neurons_are_computed_bit_for_bit_as_among_all(name, delays):
    rule, units, rows = RULES[name], 64, slice(20, 31)
    neuron = Neuron(units, 0.3, soma_of("adaptive", resistance=9.0), SYNAPSES, delays, rule)
    spikes, read = drawn_inputs(num_inputs=333), dict.fromkeys(rule.reads, 0.7)
    first, last, (potentials, kernels, fired) = run(neuron, spikes, read=read)

    def own(path, leaf):
        dotted = ".".join(key.key for key in path)
        return leaf[rows] if any(matches(pattern, dotted) for pattern in neuron.by_neuron) else leaf

    some = jax.tree_util.tree_map_with_path(own, first)
    _, some_last, (some_potentials, some_kernels, some_fired) = run(neuron, spikes, read=read, state=some)
    np.testing.assert_array_equal(some_fired, fired[:, rows])
    np.testing.assert_array_equal(some_potentials, potentials[:, rows])
    np.testing.assert_array_equal(some_kernels, kernels[:, rows])
    expected = jax.tree_util.tree_map_with_path(own, last)
    jax.tree.map(np.testing.assert_array_equal, some_last, expected)
    assert fired.any()


@pytest.mark.compiles
def test_more_neurons_or_other_modules_change_nothing_of_what_a_neuron_draws():
    few, many = (
        Neuron(units, synapses=SYNAPSES, delays=N2NDelays(9.0)).init(
            jax.random.key(3), {"in_spikes": (INPUTS,)}, dt=1.0, dtype=jnp.float32
        )
        for units in (4, 9)
    )
    np.testing.assert_array_equal(few["synapses"]["kernel"], many["synapses"]["kernel"][:4])
    np.testing.assert_array_equal(few["delays"]["delays"], many["delays"]["delays"][:4])


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (0.25, 2), (1.0, 8)])
def test_spikes_of_inhibitory_neurons_are_negative(rate, count):
    neuron = Neuron(8, rate, soma_of("leaky", resistance=400.0), SYNAPSES)
    first, _, (_, _, fired) = run(neuron, np.abs(drawn_inputs()))
    assert int(first["inhibitory"].sum()) == count
    inhibitory = np.asarray(first["inhibitory"])
    assert (fired[:, inhibitory] <= 0).all()
    assert (fired[:, ~inhibitory] >= 0).all()
    assert set(np.unique(np.abs(fired))) == {0, 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_states_keep_their_dtype(dtype):
    neuron = Neuron(UNITS, 0.0, soma_of("adaptive"), SYNAPSES, N2NDelays(4.0), RULES["zenke"])
    first, last, _ = run(neuron, drawn_inputs(), dtype=jnp.dtype(dtype))
    assert jax.tree.map(lambda leaf: leaf.dtype, first) == jax.tree.map(lambda leaf: leaf.dtype, last)
    assert last["synapses"]["kernel"].dtype == dtype
    assert bool(jnp.isfinite(last["synapses"]["kernel"]).all())


def test_problems_name_component_and_setting():
    soma = AdaptiveLeakySoma(potential_tau=-3.0, cooldown=-1.0)
    rule = ZenkeRule(target_tau=0.0)
    neuron = Neuron(0, 1.5, soma, TracedSynapses(tau=float("nan")), N2NDelays(max_delay=0.5), rule)
    text = "\n".join(neuron.problems(dt=1.0))
    for part in (
        "units is 0",
        "inhibitory_rate is 1.5",
        "soma.potential_tau is -3 ms",
        "soma.cooldown is -1 ms",
        "synapses.tau is nan ms",
        "delays.max_delay is 0.5 ms, shorter than a step of 1 ms",
        "learning_rule.target_tau is 0 ms",
    ):
        assert part in text
    assert Neuron(3, 0.5, AdaptiveLeakySoma(cooldown=0.0), SYNAPSES, N2NDelays(), RULES["oja"]).problems(dt=1.0) == []


@pytest.mark.parametrize("delays", [N2NDelays(max_delay=3.0), NDelays(max_delay=3.0), NoDelays()])
def test_each_rule_goes_with_each_kind_of_delays(delays):
    for name in registered_names("learning_rule"):
        rule = registered(name, kind="learning_rule")()
        neuron = Neuron(UNITS, 0.4, LeakySoma(), LinearSynapses(Constant(1.0)), delays, rule)
        shapes = {"in_spikes": (INPUTS,), **dict.fromkeys(rule.reads, (1,))}
        state = jax.eval_shape(
            lambda key, n=neuron, s=shapes: n.init(key, s, dt=1.0, dtype=jnp.float32), jax.random.key(0)
        )
        read = {"in_spikes": jnp.ones(INPUTS, jnp.int8), **dict.fromkeys(rule.reads, jnp.ones(1))}
        after, _ = jax.eval_shape(lambda state, n=neuron, r=read: n.step(state, r, dt=1.0), state)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state), name


def test_a_reward_of_several_numbers_is_refused():
    neuron = Neuron(3, learning_rule=ThreeFactorRule())
    with pytest.raises(BrainError, match=r"reward is one number, and what arrives is \(2,\)"):
        neuron.outputs({"in_spikes": (4,), "reward": (2,)})


def test_delays_start_at_the_shortest():
    for delays in (N2NDelays(6.0, min_delay=3.0), NDelays(6.0, min_delay=3.0)):
        drawn = delays.init(jax.random.key(0), 40, 50, dt=1.0)["delays"]
        assert set(np.unique(drawn).tolist()) == {3, 4, 5, 6}
    assert N2NDelays(2.0, min_delay=3.0).problems(dt=1.0) == [
        "min_delay is 3 ms and max_delay is 2 ms\na min_delay of at most max_delay"
    ]


@pytest.mark.compiles
def test_who_is_inhibitory_is_known_before_the_first_spike():
    neuron = {"synapses": LinearSynapses(Constant(1.0)), "inhibitory_rate": 0.5}
    modules = {
        "eye": LinearSpiker(),
        "some": Sampler(5),
        "all": Concat(),
        "a": Neuron(8, **neuron),
        "b": Neuron(4, **neuron),
    }
    wires = ["inputs:light -> eye:signal", "a:out_spikes -> some:inputs", "some:output -> all:inputs"]
    wires += ["eye:spikes -> all:inputs", "all:output -> b:in_spikes", "b:out_spikes -> a:in_spikes"]
    connections = [Connection(*wire.split(" -> ")) for wire in wires]
    state = Brain(modules, connections, inputs={"light": (3,)}).init(jax.random.key(1))
    a, b = state["a"]["inhibitory"], state["b"]["inhibitory"]
    assert (a.sum(), b.sum()) == (4, 2)
    np.testing.assert_array_equal(state["a"]["delays"]["inhibitory"], b)
    expected = [*a[state["some"]["indices"]].tolist(), False, False, False]
    assert state["b"]["delays"]["inhibitory"].tolist() == expected


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (BoundedQuadrupletRule(q_alpha=(1.0, 2.0)), "q_alpha has 2 values\none number, or four: EE, EI, IE, II"),  # type: ignore[arg-type]
        (BoundedQuadrupletRule(pre_tau=(1.0, 0.0, 1.0, 1.0)), "pre_tau is (1.0, 0.0, 1.0, 1.0)\npositive numbers"),
    ],
)
def test_settings_by_kind_of_pair_that_cannot_be(rule, problem):
    (refusal,) = rule.problems(dt=1.0)
    assert refusal.startswith(problem)
