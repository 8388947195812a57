"""One of two processes that do not fit together: its batch has a NaN, and its folder of checkpoints is another one.

python uneven_worker.py ID NUM_PROCESSES PORT FOLDER
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import outlay


class Batches:
    def __init__(self, process: int) -> None:
        self.process = process

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        image, label = np.ones(4, np.float32), np.arange(4, dtype=np.int32)
        if self.process == 1 and step == 2:
            image[3] = np.nan
        return {"image": image, "label": label}


def trained(process: int) -> str:
    """What this process says while it trains."""
    program = outlay.program(
        lambda state, batch: (state + batch["image"].mean(), {"loss": batch["image"].mean()}),
        lambda key: jnp.float32(0),
        Batches(0)[0],
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=-1),
    )
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        outlay.fit(program, Batches(process), steps=5, key=jax.random.key(0), progress=False)
    return printed.getvalue()


def saved(folder: Path) -> str:
    """What is said of a folder that is another one in each process."""
    try:
        outlay.Checkpoints(folder)._lock_folder()
    except outlay.errors.CheckpointError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    process, num_processes, port, folder = sys.argv[1:]
    outlay.join(process=int(process), num_processes=int(num_processes), coordinator=f"127.0.0.1:{port}", timeout=280)
    words = [trained(int(process)), saved(Path(folder, "saved", process))]
    (Path(folder) / f"{process}.json").write_text(json.dumps(words))
    jax.distributed.shutdown()
