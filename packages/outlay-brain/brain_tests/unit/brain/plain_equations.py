"""The neuron's equations with loops over neurons and pairs, to check the real ones against. No JAX."""

from __future__ import annotations

import math

import numpy as np


class Tracer:
    def __init__(self, tau, scale=1.0, base=0.0, *, dt):
        self.decay, self.scale, self.base, self.value = math.exp(-dt / tau), scale, base, base

    def __call__(self, x):
        self.value = self.base + self.decay * (self.value - self.base) + self.scale * x
        return self.value


class RDTracer:
    def __init__(self, tau_rise, tau_decay, scale_rise=1.0, scale_decay=1.0, base_rise=0.0, base_decay=0.0, *, dt):
        coupled = tau_rise * tau_decay / (tau_rise + tau_decay)
        self.rise = Tracer(coupled, scale_rise, base_rise, dt=dt)
        self.decay = Tracer(tau_decay, scale_decay, base_decay, dt=dt)

    def __call__(self, x):
        return self.decay(x) - self.rise(x)


class RFSTracer:
    def __init__(self, alpha, fast, slow):
        self.alpha, self.fast, self.slow = alpha, fast, slow

    def __call__(self, x):
        return self.alpha * self.fast(x) + (1 - self.alpha) * self.slow(x)


def arrivals(inputs, delays, step, i, j):
    """The value that arrives at post neuron i from pre neuron j, of all inputs up to now (steps, pre)."""
    delay = 1 if delays is None else int(delays[i, j] if delays.ndim == 2 else delays[j])
    return int(inputs[step - delay + 1, j]) if step - delay + 1 >= 0 else 0


class Soma:
    """One leaky soma of the four kinds, as its docstring says."""

    def __init__(self, s, kind, dt):
        self.s, self.kind, self.dt = s, kind, dt
        self.v, self.c = 0.0, int(np.round(getattr(s, "cooldown", 0) / dt))
        self.n = self.c
        if kind == "adaptive":
            self.theta = Tracer(s.threshold_tau, s.threshold_delta, s.threshold - s.potential_rest, dt=dt)

    def __call__(self, current):
        s, e = self.s, math.exp(-self.dt / self.s.potential_tau)
        reset, threshold = s.potential_reset - s.potential_rest, s.threshold - s.potential_rest
        ready = {"leaky": True, "strict": self.n >= self.c}.get(self.kind, self.n > self.c)
        gain = (1 - e) * s.potential_tau * s.resistance * current
        v = (e * self.v + gain if ready else reset) if self.kind == "strict" else e * self.v + (gain if ready else 0)
        spike = v > (self.theta.value if self.kind == "adaptive" else threshold) and ready
        self.margin = abs(v - (self.theta.value if self.kind == "adaptive" else threshold))
        self.v, self.n = (reset if spike else v), (0 if spike else self.n + 1)
        if self.kind == "adaptive":
            self.theta(float(spike))
        return bool(spike)


def unit_tracer(tau, dt):
    """A trace to which a spike adds 1/tau."""
    return Tracer(tau, 1 / tau, dt=dt)


class Rule:
    """One pair of a learning rule, with its own traces."""

    def __init__(self, r, kind, dt):
        self.r, self.kind, self.dt = r, kind, dt
        self.pre = unit_tracer(getattr(r, "pre_tau", 1.0), dt)
        self.post = unit_tracer(r.post_tau, dt)
        self.target = 0.0
        if kind == "zenke":
            self.slow = unit_tracer(r.post_slow_tau, dt)

    def __call__(self, kernel, s, z, read):
        r, dt = self.r, self.dt
        pre, post = self.pre(s), self.post(z)
        if self.kind == "zenke":
            slow, t = self.slow(z), self.target
            fed = kernel - r.p * t * (0.25 - t) * (0.5 - t)
            self.target = math.exp(-dt / r.target_tau) * t + fed / r.target_tau
            pull = r.c * (kernel - self.target) * post**3 * z
            change = r.eta * (r.a * slow * z * pre + r.b * post * s + pull + r.d * s)
        elif self.kind == "hebbian":
            change = r.eta * (post * s + z * pre)
        elif self.kind == "oja":
            change = r.eta * (post * s - kernel * post**2)
        elif self.kind == "three_factor":
            change = r.gamma * (read["reward"] + 0.1) * (post * s + z * pre)
        else:
            terms = r.q_alpha * s + r.q_beta * post * s + r.q_gamma * z + r.q_delta * z * pre
            change = r.eta * (read["modulation"] + 0.1) * terms
        return max(kernel + dt * change, 0.0)
