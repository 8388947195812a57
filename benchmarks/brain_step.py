"""A step of the two-population Brain of the recorded run, and how far it is from the speed of memory.

The model: 640 neurons, 459,000 plastic pairs, each with a kernel, a target and a delay. What must move in a step: the
kernels and targets of all pairs in and out, and their delays in; the copy it is compared with moves as many bytes.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.contract.ab_reference import POPULATIONS, ab_brain, recorded, recorded_start

ROUNDS, STEPS = 15, 1000


def main():
    brain, record = ab_brain(), recorded()
    start = recorded_start(brain, record)
    drive = jnp.asarray(record["drive"])
    drive = jnp.tile(drive, (-(-STEPS // len(drive)), 1))[:STEPS]

    def simulate(state, drive):
        return jax.lax.scan(lambda state, inputs: brain.step(state, {"drive": inputs}), state, drive)

    step = best(jax.jit(simulate, donate_argnums=0), start, drive) / STEPS
    moved = bytes_of_a_step(start)
    limit = moved / copy_speed(start)
    print(f"JAX {jax.__version__}: {step * 1e3:.3f} ms a step, {1 / step:.0f} steps/s, {1e-3 / step:.1f} x real time")
    cost = f"{moved / 1e6:.1f} MB a step must move, {limit * 1e3:.3f} ms at the speed of a copy"
    print(f"memory: {cost}: ratio {step / limit:.2f}")


def best(function, state, *inputs):
    """Seconds of the fastest of some calls, each with a fresh state to donate; the machine may be busy."""
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
    """Bytes read and written a second when arrays of the kernels' sizes are rewritten in place, in one program."""
    kernels = [state[name][part][leaf] for name in POPULATIONS for part, leaf in PAIRED]

    def rewrite(kernels):
        return jax.lax.fori_loop(0, 200, lambda _, kernels: [kernel + 1 for kernel in kernels], kernels)

    seconds = best(jax.jit(rewrite, donate_argnums=0), kernels) / 200
    return 2 * sum(kernel.nbytes for kernel in kernels) / seconds


PAIRED = (("synapses", "kernel"), ("learning_rule", "target_trace"))

if __name__ == "__main__":
    main()
