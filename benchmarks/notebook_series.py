"""The measured steps of the notebooks on pipelines, tensor parallelism and 3D parallelism, priced on their hardware.

    python benchmarks/notebook_series.py [--case 3d] [--batch 4096]

phlippe/uvadlc_notebooks (docs/tutorial_notebooks/scaling/JAX) gives the times of a step on 8 RTX A5000, four pairs that
NVLink joins, and the memory of two. The models are those of the tutorials, larger; the steps are compiled for the
target `a5000`. The batch of the pipelines is not published. An exchange between stages takes 17 µs at 60 GB/s there, so
that a microbatch has at most about 128 samples of 2,048 numbers, and the batch 4,096: `--batch` says another.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

import outlay

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "tutorials" / "programs"))

import deep_classifier
import transformer

TARGET = "a5000:4x2"
LENGTH, SEQUENCES = 1024, 128


@dataclass(frozen=True)
class Published:
    """What the notebooks measured: seconds of a step, and GB of a device where they say so."""

    step: float
    memory: float | None = None


PUBLISHED = {
    "pipeline": Published(0.205),
    "written-out": Published(0.205),
    "looping": Published(0.190),
    "sequential": Published(2.8),
    "parallel": Published(2.6),
    "3d": Published(2.9, 8.5),
    "without-fsdp": Published(2.5, 14.5),
}


def program_of(case: str, batch: int) -> Any:
    """Return the train step of a case on the target, not yet compiled."""
    return _pipeline(case, batch) if case in ("pipeline", "written-out", "looping") else _transformer(case)


def _pipeline(case: str, batch: int) -> Any:
    unroll = 8 if case == "written-out" else 1
    model = deep_classifier.Classifier(width=2048, layers=16, expansion=4, unroll=unroll)
    layers = outlay.layout.pipeline("stage", microbatches=8, repeats=8 if case == "looping" else 1)
    inputs = {
        "inputs": jax.ShapeDtypeStruct((batch, 784), "float32"),
        "labels": jax.ShapeDtypeStruct((batch,), "int32"),
    }
    layout = outlay.Layout([("params.blocks.**", layers)]) + outlay.data_parallel()
    return _program(deep_classifier.training(model), inputs, layout, data=4, stage=2)


def _transformer(case: str) -> Any:
    sizes = {"width": 2048, "layers": 16, "head_dim": 128, "vocabulary": 32_000}
    model = transformer.Transformer(**sizes, parallel=case != "sequential")
    axes = {"data": 2, "stage": 2, "model": 2} if case == "3d" else {"data": 4, "model": 2}
    layout = transformer_layout(pipelined=case == "3d")
    layout += outlay.Layout([("params.**", outlay.replicate())]) if case == "without-fsdp" else outlay.fsdp("data")
    inputs = dict.fromkeys(("inputs", "labels"), jax.ShapeDtypeStruct((SEQUENCES, LENGTH), "int32"))
    return _program(transformer.training(model, LENGTH, 2e-4), inputs, layout + outlay.data_parallel(), **axes)


def transformer_layout(*, pipelined: bool) -> Any:
    """Return the tutorials' rules: heads and hidden units over `model`, features between layers and logits as well."""
    stages = [("params.blocks.**", outlay.layout.pipeline("stage", microbatches=8))] if pipelined else []
    jointly = ("stage", "model") if pipelined else "model"
    columns = ["params.blocks.feed_forward.up.*", "params.tokens.embedding", "params.positions"]
    rules = outlay.Layout(
        [
            *stages,
            *((f"params.blocks.attention.{name}.kernel", P(None, None, "model")) for name in ("query", "key", "value")),
            ("params.blocks.attention.out.kernel", P(None, "model")),
            ("params.head.logits.kernel", P(jointly)),
            ("@attend", P("data", None, "model")),
            ("@Block", P("data", None, "model")),
            ("@Head", P("data", jointly)),
        ]
    )
    return rules + outlay.tensor_parallel(columns=columns, rows=["params.blocks.feed_forward.down.kernel"])


def _program(training: tuple[Any, Any, Any], inputs: Any, layout: Any, **axes: Any) -> Any:
    init_params, loss, optimizer = training
    return outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        inputs,
        layout=layout,
        mesh=outlay.mesh(axes, over={"stage": "hosts"} if axes.get("data") == 2 else None, target=TARGET),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*PUBLISHED], action="append", help="one of them; all if not given")
    parser.add_argument("--batch", type=int, default=4096, help="samples of the pipelines")
    asked = parser.parse_args()
    print("| case | published | priced | range | inside | published GB | compiled GB |\n|---|---|---|---|---|---|---|")
    for case in asked.case or PUBLISHED:
        published, explained = PUBLISHED[case], outlay.explain(program_of(case, asked.batch))
        priced = outlay.estimate(explained)
        inside = "yes" if priced.seconds_low <= published.step <= priced.seconds_high else "no"
        bounds = f"{priced.seconds_low:.3g} to {priced.seconds_high:.3g} s"
        held = "" if explained.memory is None else f"{explained.memory.peak / 1e9:.1f}"
        print(
            f"| {case} | {published.step:.3g} s | {priced.seconds:.3g} s | {bounds} | {inside} "
            f"| {published.memory or ''} | {held} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
