"""How much memory a layer of attention takes on each device whose tokens are split, as the compiler of a target says.

    python benchmarks/long_sequences.py [--tokens 131072] [--exchange ring] [--devices 1,2,4,8]

A train step of one attention layer with 8 heads of 128 and one sequence, compiled for 1 to 8 absent H100: the bytes of
temporaries and of all a device holds, and the collectives with the line of the call.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import outlay

HEADS, HEAD = 8, 128


def program_of(tokens: int, exchange: Any, devices: int) -> Any:
    """Return a train step of one layer of attention over so many tokens."""
    width = HEADS * HEAD

    def init(key: jax.Array) -> Any:
        return {name: jax.random.normal(key, (width, width), jnp.bfloat16) / 32 for name in ("q", "k", "v", "out")}

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        heads = [(batch @ params[name]).reshape(*batch.shape[:2], HEADS, HEAD) for name in ("q", "k", "v")]
        y = outlay.attention(*heads, causal=True).reshape(batch.shape) @ params["out"]
        return (y.astype(jnp.float32) ** 2).mean((1, 2)), {}

    layout = outlay.Layout([("@attention", outlay.layout.context("context", exchange)), ("batch", P(None, "context"))])
    optimizer = optax.sgd(0.1)
    return outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init, optimizer),
        jax.ShapeDtypeStruct((1, tokens, width), jnp.bfloat16),
        layout=layout + outlay.replicate(),
        mesh=outlay.mesh(context=devices, target=f"h100:1x{devices}"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--exchange", default="ring", choices=("ring", "gather", "all_to_all"))
    parser.add_argument("--devices", default="1,2,4,8")
    asked = parser.parse_args()
    print("| devices | temporaries a device | all of a device | collectives of a step |\n| --- | --- | --- | --- |")
    for devices in map(int, asked.devices.split(",")):
        program = program_of(asked.tokens, asked.exchange, devices)
        memory = program.compiled.memory_analysis()
        report = outlay.explain(program)
        lines = Counter((each.kind, str(getattr(each, "source", ""))) for each in report.collectives)
        counts = ", ".join(f"{count} {kind} {line}".strip() for (kind, line), count in sorted(lines.items()))
        held = memory.temp_size_in_bytes + memory.argument_size_in_bytes
        print(
            f"| {devices} | {memory.temp_size_in_bytes / 2**20:,.0f} MiB | {held / 2**20:,.0f} MiB | {counts} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
