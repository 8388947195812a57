"""A step of a small float16 or bfloat16 Brain in NumPy, which rounds after every operation, and the Brain itself."""

import math

import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import N2NDelays, NDelays, NoDelays
from outlay.brain.encoders import TopologicalLinearSpiker
from outlay.brain.initializers import Uniform
from outlay.brain.learning_rules.hebbian import OjaRule
from outlay.brain.learning_rules.quadruplet import QuadrupletRule
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.synapses import LANES, LinearSynapses, RDTracedSynapses, TracedSynapses, num_lanes

LOW, HIGH = -1.0, 1.0
SPIKER = TopologicalLinearSpiker(tau=30.0, max_freq=200.0, mins=LOW, maxs=HIGH, resolution=32)
SOMA = AdaptiveLeakySoma(resistance=3.0, cooldown=1.0)
INTEGRATOR = ExponentialIntegrator(2, tau=20.0, shuffle=False)
UNITS, SIGNALS = 24, 3


def narrow_brain(dtype):
    """Three populations that read a spiker and each other, with three rules, kinds of delays and of synapses."""
    kernel = Uniform(scale=0.5)
    populations = {
        "zenke": Neuron(UNITS, 0.25, SOMA, LinearSynapses(kernel), N2NDelays(max_delay=8.0), ZenkeRule()),
        "quadruplet": Neuron(
            UNITS, 0.0, SOMA, TracedSynapses(kernel), NDelays(max_delay=5.0), QuadrupletRule(eta=0.003)
        ),
        "oja": Neuron(UNITS, 0.0, SOMA, RDTracedSynapses(kernel), NoDelays(), OjaRule()),
    }
    return Brain(
        {"spiker": SPIKER, **populations, "integrator": INTEGRATOR},
        [
            Connection("inputs:signal", "spiker:signal"),
            *(Connection("spiker:spikes", f"{name}:in_spikes") for name in populations),
            *(Connection(f"{other}:out_spikes", "zenke:in_spikes") for other in populations),
            Connection("zenke:out_spikes", "oja:in_spikes"),
            Connection("inputs:modulation", "quadruplet:modulation"),
            *(Connection(f"{name}:out_spikes", "integrator:spikes") for name in populations),
        ],
        inputs={"signal": (SIGNALS,), "modulation": (1,)},
        outputs={"action": "integrator:signal"},
        dtype=dtype,
    )


class Narrow:
    """The arithmetic of a narrow dtype: NumPy rounds each result to the dtype of the operands."""

    def __init__(self, dtype):
        self.t = np.dtype(dtype).type

    def of(self, function, x):
        """A function of float32, rounded."""
        return function(x.astype(np.float32)).astype(self.t)

    def traced(self, trace, x, tau, scale=1.0, base=0.0):
        """A `Tracer` of steps of 1 ms."""
        t = self.t
        above = trace - t(base) if base else trace
        after = t(math.exp(-1 / tau)) * above + t(scale) * x.astype(t)
        return after + t(base) if base else after

    def spiker(self, state, signal):
        t, s = self.t, SPIKER
        x = ((signal - t(LOW)) / t(HIGH - LOW))[:, None]
        g = self.of(np.tanh, np.linspace(0, math.pi, s.resolution).astype(t) - t(math.pi) * x)
        drive = self.of(np.exp, t(-0.5 / s.sigma) * g * g)
        decay = math.exp(-1 / s.tau)
        scale = 1 + 1 / math.expm1((1000 - s.cd * s.max_freq) / (s.tau * s.max_freq))
        # In Spark's order: a product of the constants, rounded once, is another number.
        gain = t(scale) * (t(1) - t(decay))
        rise = np.where(state["refractory"] >= t(s.cd), gain * (t(s.tau) * drive), t(0))
        potential = t(decay) * state["potential"] + rise
        spikes = potential > t(s.tau)
        state["potential"] = np.where(spikes, t(0), potential)
        state["refractory"] = np.where(spikes, t(0), state["refractory"] + t(1))
        return spikes.astype(np.int8)

    def soma(self, state, current):
        t, f = self.t, np.float32
        reset, threshold = SOMA.potential_reset - SOMA.potential_rest, SOMA.threshold - SOMA.potential_rest
        decay, ready = math.exp(-1 / SOMA.potential_tau), state["refractory"] > SOMA.cooldown
        gain = (1 - decay) * SOMA.potential_tau * SOMA.resistance
        taken = np.where(ready, f(gain) * current.astype(f), f(0))
        charged = f(decay) * state["potential"].astype(f) + taken
        spikes = (charged > state["threshold"].astype(f)) & ready
        state["potential"] = np.where(spikes, f(reset), charged).astype(t)
        state["refractory"] = np.where(spikes, 0, state["refractory"] + 1)
        state["threshold"] = self.traced(
            state["threshold"], spikes, SOMA.threshold_tau, SOMA.threshold_delta, threshold
        )
        return spikes

    def current(self, name, state, brought):
        """What synapses make of what arrives, which is added up in float32."""
        brought = brought.astype(self.t)
        if name == "zenke":
            return brought
        if name == "quadruplet":
            state["trace"] = self.traced(state["trace"], brought, 5.0)
            return state["trace"]
        both = state["trace"]
        both["rise"] = self.traced(both["rise"], brought, 5 / 6)
        both["decay"] = self.traced(both["decay"], brought, 5.0)
        return both["decay"] - both["rise"]

    def zenke(self, state, kernel, arrived, seen, z, modulation):
        t, f, rule = self.t, np.float32, ZenkeRule()
        post = state["post_trace"] = self.traced(state["post_trace"], z, rule.post_tau, 1 / rule.post_tau)
        slow = state["post_slow_trace"] = self.traced(
            state["post_slow_trace"], z, rule.post_slow_tau, 1 / rule.post_slow_tau
        )
        post, slow = post.astype(f)[:, None], slow.astype(f)[:, None]
        before = state["target_trace"].astype(f)
        fed = kernel - f(rule.p) * before * (f(0.25) - before) * (f(0.5) - before)
        left = f(math.exp(-1 / rule.target_tau)) * before
        target = state["target_trace"] = (left + fed * (f(1) / f(rule.target_tau))).astype(t)
        arrival = np.where(arrived, f(rule.eta) * (f(rule.b) * post + f(rule.d)), f(0))
        triplet = f(rule.eta * rule.a) * slow * seen(state["pre_trace"]).astype(f)
        pull = f(rule.eta * rule.c) * (post * post * post) * (kernel - target.astype(f))
        return np.where(z[:, None], arrival + triplet + pull, arrival)

    def quadruplet(self, state, kernel, arrived, seen, z, modulation):
        t, f, rule = self.t, np.float32, QuadrupletRule(eta=0.003)
        post = state["post_trace"] = self.traced(state["post_trace"], z, rule.post_tau, 1 / rule.post_tau)
        rate = f(rule.eta) * (modulation.astype(f) + f(0.1))
        arrival = np.where(arrived, rate * (f(rule.q_alpha) + f(rule.q_beta) * post.astype(f)[:, None]), f(0))
        # What is said of a narrow trace alone is narrow.
        of_spike = (t(rule.q_gamma) + t(rule.q_delta) * seen(state["pre_trace"])).astype(f)
        return np.where(z[:, None], arrival + rate * of_spike, arrival)

    def oja(self, state, kernel, arrived, seen, z, modulation):
        f, rule = np.float32, OjaRule()
        state["post_trace"] = self.traced(state["post_trace"], z, rule.post_tau, 1 / rule.post_tau)
        post = state["post_trace"].astype(f)[:, None]
        return f(rule.eta) * (np.where(arrived, post, f(0)) - kernel * (post * post))

    def neuron(self, name, state, read, modulation):
        f, delays, rule = np.float32, state["delays"], state["learning_rule"]
        sent = read != 0
        delays["history"] = (delays["history"] << 1) | sent
        age = (
            np.broadcast_to(delays.get("delays", np.uint8(1)), state["synapses"]["kernel"].shape).astype(np.uint32) - 1
        )
        arrived, kernel = (delays["history"][0] >> age) & 1 != 0, state["synapses"]["kernel"].astype(f)
        sign = np.where(delays["inhibitory"], f(-1), f(1))
        brought = rows_added(np.where(arrived, kernel, f(0)) * sign)
        z = self.soma(state["soma"], self.current(name, state["synapses"], brought))
        if "pre_trace" in rule:
            tau = {"zenke": 20.0, "quadruplet": 10.0}[name]
            newest = self.traced(rule["pre_trace"][0], sent, tau, 1 / tau)
            rule["pre_trace"] = np.concatenate([newest[None], rule["pre_trace"][:-1]])
        change = getattr(self, name)(
            rule, kernel, arrived, lambda past: np.take_along_axis(past, age.astype(int), axis=0), z, modulation
        )
        state["synapses"]["kernel"] = np.maximum(kernel + change, f(0)).astype(self.t)
        return np.where(z, np.where(state["inhibitory"], -1, 1), 0).astype(np.int8)

    def integrator(self, state, spikes):
        counts = np.bincount(state["indices"], spikes != 0, 2).astype(np.int32)
        share = np.float32((1000 / INTEGRATOR.saturation_freq) / (INTEGRATOR.tau * len(spikes) / 2))
        both = state["trace"]
        both["rise"] = self.traced(both["rise"], share * counts.astype(np.float32), 10 * 20 / (10 + 20))
        both["decay"] = self.traced(both["decay"], counts, 10.0, 1 / 10.0)
        return both["decay"] - both["rise"]

    def step(self, state, signal, modulation):
        """One step, in place; the spikes of each module, and the action."""
        cache = {name: next(iter(ports.values())).reshape(-1) for name, ports in state["cache"].items()}
        names = ("zenke", "quadruplet", "oja")
        reads = {"zenke": ("spiker", *names), "quadruplet": ("spiker",), "oja": ("spiker", "zenke")}
        produced = {"spiker": self.spiker(state["spiker"], signal)}
        for name in names:
            read = np.concatenate([cache[other] for other in reads[name]])
            produced[name] = self.neuron(name, state[name], read, modulation)
        produced["integrator"] = self.integrator(state["integrator"], np.concatenate([cache[name] for name in names]))
        for name, ports in state["cache"].items():
            ports[next(iter(ports))] = produced[name]
        return produced


def rows_added(pairs):
    """Sums of rows in float32, in the order of `sum_rows`."""
    lanes = num_lanes(pairs.shape[1])
    assert lanes == LANES
    blocks = np.pad(pairs, ((0, 0), (0, -pairs.shape[1] % lanes))).reshape(len(pairs), -1, lanes)
    total = blocks[:, 0]
    for block in range(1, blocks.shape[1]):
        total = total + blocks[:, block]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]
