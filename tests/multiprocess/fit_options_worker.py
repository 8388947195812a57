"""One of several processes that train in buckets, several steps a call and with patience, and tell what came of it.

python fit_options_worker.py ID NUM_PROCESSES PORT FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import outlay

SIZES = np.random.default_rng(0).integers(1, 9, 21)
EVALUATED = [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 2.0]
"""What is evaluated after every second step: nothing betters the third until the seventh."""


def loss(params: Any, batch: Any, keys: Any) -> Any:
    inside = jnp.arange(batch["tokens"].shape[1])[None] < batch["length"][:, None]
    errors = jnp.square(params["table"][batch["tokens"]] - batch["tokens"] / 32)
    return (errors * inside).sum(axis=1) / batch["length"], {}


def trained(folder: Path, num_devices: int) -> dict[str, list[list[float]]]:
    """The metrics of each run, as step and loss, one run for each of the options; that of patience is continued."""
    sequences = [np.full(size, number + 1, np.int32) for number, size in enumerate(SIZES)]
    data = outlay.train.BucketedData(sequences, lengths=[4, 8], batch_size=8)
    optimizer = optax.adam(1e-2)
    program = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: {"table": jax.random.normal(key, 32)}, optimizer),
        data.buckets[0],
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh=outlay.mesh(data=num_devices, devices=jax.devices()[:num_devices]),
    )
    same = [data.buckets[0]] * 14
    patient = {
        "metrics_path": folder / "metrics.jsonl",
        "checkpoints": outlay.Checkpoints(folder / "checkpoints"),
        "evaluate": lambda program, state: {"loss": EVALUATED[int(state.step) // 2 - 1]},
        "evaluate_every": 2,
        "patience": outlay.train.Patience(3),
    }

    def losses(data: Any, steps: int, **options: Any) -> list[list[float]]:
        done = outlay.fit(program, data, steps=steps, key=jax.random.key(0), progress=False, **options)
        return [[metrics["step"], metrics["loss"]] for metrics in done.history]

    return {
        "buckets": losses(data, 6),
        "begun": losses(same, 8, steps_per_call=2, **patient),
        "continued": losses(same, 14, start=patient["checkpoints"].restore(program), steps_per_call=2, **patient),
    }


if __name__ == "__main__":
    process, num_processes, port, folder = sys.argv[1:]
    outlay.join(process=int(process), num_processes=int(num_processes), coordinator=f"127.0.0.1:{port}", timeout=280)
    (Path(folder) / f"{process}.json").write_text(json.dumps(trained(Path(folder), jax.device_count())))
    jax.distributed.shutdown()
