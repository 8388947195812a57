"""Eight layouts ranked by estimate and by the clock, on eight simulated devices calibrated in the same run.

The bar: Spearman's rank correlation of at least 0.9. Simulated devices share this machine's cores, so the order is that
of this machine, not of eight accelerators; what is tested is that the estimate knows what costs.
"""

import sys
import time

import jax
import numpy as np
from _layouts import lm_programs, mlp_programs

import outlay

ROUNDS, STEPS, BAR = 8, 2, 0.9


def main():
    from outlay.analysis.cost.calibrate import calibrate
    from outlay.devices.target import Target

    calibration = calibrate(on_progress=lambda what: print(f"measuring {what}", file=sys.stderr))
    print(calibration)
    target = Target(calibration.hardware, (8,))
    for what, make in {"4 x 1024 MLP, batch 256": mlp_programs, "lm tiny": lm_programs}.items():
        rank(what, make(), target)


def rank(what, programs, target):
    from outlay.report.explain.explain import estimate

    estimates = {name: estimate(program, target=target) for name, program in programs.items()}
    rounds = measure(programs)
    measured, odd, even = (
        {name: float(np.median(times[part])) for name, times in rounds.items()}
        for part in (slice(None), slice(1, None, 2), slice(0, None, 2))
    )
    print(f"\n{what}{'':{24 - len(what)}}   measured    estimate       low      high   dominated by")
    for name in sorted(programs, key=measured.get):
        estimated = estimates[name]
        times = (measured[name], estimated.seconds, estimated.seconds_low, estimated.seconds_high)
        print(f"  {name:22}", "".join(f"{1e3 * seconds:8.1f} ms" for seconds in times), "", estimated.dominated_by)
    correlation = spearman(list(measured.values()), [estimates[name].seconds for name in measured])
    print(f"Spearman {correlation:.3f} ({'within' if correlation >= BAR else 'BELOW'} the bar of {BAR})")
    ceiling = spearman(list(odd.values()), list(even.values()))
    print(f"every other round against the rest {ceiling:.3f}: no estimate is nearer to the clock than the clock is")


def measure(programs):
    """Return the seconds per step of each program in every round; in a round they take turns."""
    states = {name: program.init(jax.random.key(0)) for name, program in programs.items()}
    batches = {name: example(program) for name, program in programs.items()}
    times = {name: [] for name in programs}
    for round_number in range(ROUNDS + 1):  # the first warms up
        for name, program in programs.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                states[name], metrics = program(states[name], batches[name])
            jax.block_until_ready((states[name], metrics))
            if round_number:
                times[name].append((time.perf_counter() - start) / STEPS)
    return times


def example(program):
    """Make a batch where the program takes it."""
    generator = np.random.default_rng(0)
    shardings = program.compiled.input_shardings[0][1]

    def one(shape, sharding):
        floats = np.issubdtype(shape.dtype, np.floating)
        values = generator.standard_normal(shape.shape) if floats else generator.integers(0, 256, shape.shape)
        return jax.device_put(values.astype(shape.dtype), sharding)

    return jax.tree.map(one, program.batch_shapes, shardings)


def spearman(first, second):
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    outlay.simulate(8)
    main()
