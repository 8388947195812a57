"""Programs whose processes are about to run different things: `differing.py KINDS PROCESS`; each prints its errors."""

import sys
import time
from pathlib import Path

from outlay.core.error_types import ProgramError
from outlay.jobs.current_job import part
from outlay.jobs.join import join


def main(kinds: str, process: int, mark: str) -> None:
    job = join(timeout=4 if kinds == "missing" else 240)
    Path(mark).write_text(repr(time.time()))
    error = None
    for kind in kinds.split(","):
        try:
            run(kind, differs=job.process == process)
        except ProgramError as caught:
            error = caught
            print("\n".join([f"{kind}: this is what it is told:", *str(caught).splitlines()]), flush=True)
            if kind != "missing":
                part(f"told {kind}", (0, 1))  # the first to end takes the other with it
    if error:
        raise error


def run(kind: str, *, differs: bool) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    from outlay.devices.build import mesh
    from outlay.program.make import program

    def step(state, batch):
        if kind == "program" and differs:
            batch = jnp.sin(batch)
        jax.debug.callback(lambda _: None, batch.sum())  # which every process pins to a device of its own
        return {"w": state["w"] + batch.mean()}, {"sum": batch.sum()}

    def init(key):
        return {"w": jax.random.normal(key, (4, 2))}

    batch = np.ones((4, 3) if kind == "data" and differs else (4, 2), np.float32)
    split = PartitionSpec() if kind == "config" and differs else PartitionSpec("data")
    made = program(
        step, init, batch, layout=[("batch", PartitionSpec("data")), ("w", split)], mesh=mesh(data=jax.device_count())
    )
    jax.config.update("jax_use_shardy_partitioner", not (differs and kind == "setting"))
    if differs and kind == "missing":
        time.sleep(60)
    if differs and kind == "early":
        sys.exit(0)
    state = made.init(jax.random.key(7 if kind == "key" and differs else 0))
    print(f"the sum is {made(state, batch)[1]['sum']}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
