"""Processor time of `outlay.explain` for a program with some 200 collectives, without and with the compiler's share.

    python benchmarks/explain_time.py [--layers N] [--profile]

An MLP of different layers, one after the other and under no loop, so that each has collectives of its own, trained with
Adam on 4 x 2 devices: split over `data` and `model`. What is compared is the time of `explain` of the compiled program
with the time to compile it, and with the size of the compiler's text. The fastest of several rounds counts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import outlay

outlay.simulate(8)
jax.config.update("jax_enable_compilation_cache", False)

ROUNDS = 5
WIDTH, BATCH = 64, 32


def program_of(num_layers: int) -> outlay.Program:
    """Return a training step of an MLP whose layers are all written out."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, 2 * num_layers)
        params = {
            f"layer{i}": {
                "up": jax.random.normal(keys[2 * i], (WIDTH, 4 * WIDTH)) * 0.1,
                "down": jax.random.normal(keys[2 * i + 1], (4 * WIDTH, WIDTH)) * 0.1,
                "scale": jnp.ones((WIDTH,)),
            }
            for i in range(num_layers)
        }
        return params

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        x = batch["x"]
        for i in range(num_layers):
            layer = params[f"layer{i}"]
            with jax.named_scope(f"layer{i}"):
                normal = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["scale"]
                x = x + jax.nn.gelu(normal @ layer["up"]) @ layer["down"]
        return jnp.mean((x - batch["y"]) ** 2, -1), {}

    batch = {name: np.ones((BATCH, WIDTH), np.float32) for name in ("x", "y")}
    layout = outlay.Layout([("params.**.up", P(None, "model")), ("params.**.down", P("model", None))])
    layout += outlay.fsdp(min_size=64) + outlay.data_parallel()
    optimizer = optax.adam(1e-3)
    return outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init, optimizer),
        batch,
        layout=layout,
        mesh="data=4,model=2",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=16, help="about 13 collectives each")
    parser.add_argument("--profile", action="store_true", help="also print the functions that take longest")
    given = parser.parse_args()
    program = program_of(given.layers)
    begun = time.process_time()
    text = program.compiled.as_text()
    compiling = time.process_time() - begun
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        report = outlay.explain(program)
        seconds.append(time.process_time() - begun)
    megabytes = len(text) / 1e6
    print(
        f"explain of {len(report.collectives)} collectives in {megabytes:.2f} MB of text: first {seconds[0]:.2f} s, "
        f"then {min(seconds):.3f} s, {min(seconds) / megabytes:.3f} s a MB, {min(seconds) / compiling:.3f} of the "
        f"{compiling:.1f} s that the compiler took"
    )
    begun = time.process_time()
    str(report)
    print(f"its text: {time.process_time() - begun:.3f} s")
    if given.profile:
        with cProfile.Profile() as profile:
            outlay.explain(program)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
