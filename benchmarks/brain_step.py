"""A step of the two-population Brain of the recorded run, and how far it is from the speed of memory.

The model: 640 neurons, 459,000 plastic pairs, each with a kernel, a target and a delay. What must move in a step: the
kernels and targets of all pairs in and out, and their delays in; the copy it is compared with moves as many bytes.
Then the same model with less to do in a step, and with more, which says where the time goes.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import dataclasses
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "outlay-brain"))
from brain_tests.contract.ab_reference import POPULATIONS, ab_brain, recorded, recorded_start

from outlay.brain.learning_rules.hebbian import HebbianRule

ROUNDS, STEPS = 15, 1000


def main():
    brain, record = ab_brain(), recorded()
    start = recorded_start(brain, record)
    drive = jnp.asarray(record["drive"])
    drive = jnp.tile(drive, (-(-STEPS // len(drive)), 1))[:STEPS]

    step = seconds_a_step(brain, start, drive)
    moved = bytes_of_a_step(start)
    limit = moved / copy_speed(start)
    print(f"JAX {jax.__version__}: {step * 1e3:.3f} ms a step, {1 / step:.0f} steps/s, {1e-3 / step:.1f} x real time")
    cost = f"{moved / 1e6:.1f} MB a step must move, {limit * 1e3:.3f} ms at the speed of a copy"
    print(f"memory: {cost}: ratio {step / limit:.2f}")
    for name, other in variants(brain).items():
        seconds = seconds_a_step(other, jax.jit(other.init)(jax.random.key(0)), drive)
        print(f"{name}: {seconds * 1e3:.3f} ms a step, {seconds / step:.2f} of the model's")


def variants(brain):
    def with_rule(rule):
        changed = {name: dataclasses.replace(brain.modules[name], learning_rule=rule) for name in POPULATIONS}
        return dataclasses.replace(brain, modules={**brain.modules, **changed})

    return {
        "no plasticity": with_rule(None),
        "Hebb's rule, which has no target of each pair": with_rule(HebbianRule()),
        "dt 0.1 ms, so that delays are of up to 80 steps": dataclasses.replace(brain, dt=0.1),
    }


def seconds_a_step(brain, start, drive):
    def simulate(state, drive):
        return jax.lax.scan(lambda state, inputs: brain.step(state, {"drive": inputs}), state, drive)

    return best(jax.jit(simulate, donate_argnums=0), start, drive) / STEPS


def best(function, state, *inputs):
    """Return the seconds of the fastest of some calls, each with a fresh state to donate; the machine may be busy."""
    compiled, times = function.lower(state, *inputs).compile(), []
    for _ in range(ROUNDS):
        fresh = jax.block_until_ready(jax.tree.map(jnp.copy, state))
        began = time.perf_counter()
        jax.block_until_ready(compiled(fresh, *inputs))
        times.append(time.perf_counter() - began)
    return min(times)


def bytes_of_a_step(state):
    pairs = sum(state[name]["synapses"]["kernel"].size for name in POPULATIONS)
    return pairs * (2 * 4 + 2 * 4 + 1)


def copy_speed(state):
    """Return the bytes per second when arrays of the kernels' sizes are rewritten in place, in one program."""
    kernels = [state[name][part][leaf] for name in POPULATIONS for part, leaf in PAIRED]

    def rewrite(kernels):
        return jax.lax.fori_loop(0, 200, lambda _, kernels: [kernel + 1 for kernel in kernels], kernels)

    seconds = best(jax.jit(rewrite, donate_argnums=0), kernels) / 200
    return 2 * sum(kernel.nbytes for kernel in kernels) / seconds


PAIRED = (("synapses", "kernel"), ("learning_rule", "target_trace"))

if __name__ == "__main__":
    main()
