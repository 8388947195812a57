"""What a checkpoint costs: save and restore, against writing and reading the same bytes with numpy.

numpy writes each array to a file of its own, on disk before the clock stops, and reads it back onto the devices. Outlay
does more: it sums every file, and checks the sums before it reads. Training waits only while `save` copies the arrays.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from _timing import compare

import outlay

outlay.simulate(8)

NUM_LEAVES = 6
SHAPE = (4096, 4096)


def init(key):
    keys = jax.random.split(key, NUM_LEAVES)
    return {f"leaf{i}": jax.random.normal(keys[i], SHAPE) for i in range(NUM_LEAVES)}


def keep(state, batch):
    return state, {"loss": batch.mean()}


folder = Path(tempfile.mkdtemp(prefix="outlay-"))
program = outlay.program(
    keep,
    init,
    np.ones(8, np.float32),
    layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
    mesh=outlay.mesh(data=8),
)
state = program.init(jax.random.key(0))
checkpoints = outlay.Checkpoints(folder / "outlay", keep=1)
shardings = jax.tree.map(lambda x: x.sharding, state)
megabytes = sum(x.nbytes for x in state.values()) / 1e6
step, waited = 0, []


def save():
    global step
    step += 1
    start = time.perf_counter()
    checkpoints.save(step, state)
    waited.append(time.perf_counter() - start)
    checkpoints.wait()


def save_with_numpy():
    for name, x in state.items():
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, np.asarray(x))
            file.flush()
            os.fsync(file.fileno())


def restore():
    jax.block_until_ready(checkpoints.restore(program))


def restore_with_numpy():
    jax.block_until_ready({x: jax.device_put(np.load(folder / f"{x}.npy"), shardings[x]) for x in state})


def print_result(what, tested, reference, ratio, bar):
    verdict = "within" if ratio <= bar else "ABOVE"
    times = f"outlay {tested:.2f} s, numpy {reference:.2f} s"
    print(f"{what} {megabytes:.0f} MB: {times}, ratio {ratio:.2f} ({verdict} {bar})")


try:
    save(), save_with_numpy(), restore(), restore_with_numpy()
    waited.clear()
    print_result("save", *compare(save, save_with_numpy, rounds=9, calls=1), bar=2.5)
    print(f"of which training waits {statistics.median(waited):.3f} s")
    print_result("restore", *compare(restore, restore_with_numpy, rounds=9, calls=1), bar=4.0)
    assert all(bool(jnp.array_equal(x, state[name])) for name, x in checkpoints.restore(program)[1].items())
finally:
    shutil.rmtree(folder)
