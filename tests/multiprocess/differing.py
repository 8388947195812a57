"""A program whose processes are about to run different things: `differing.py KIND PROCESS`; each prints its error."""

import sys
import time
from pathlib import Path

from outlay.core.errors import ProgramError
from outlay.launch.exchange import part
from outlay.launch.join import join


def main(kind: str, process: int, mark: str) -> None:
    job = join(timeout=4 if kind == "missing" else 60)
    differs = job.process == process
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    from outlay.execute.make import program
    from outlay.meshes.build import mesh

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
    Path(mark).write_text(repr(time.time()))
    if differs and kind == "missing":
        time.sleep(60)
    if differs and kind == "early":
        sys.exit(0)
    try:
        state = made.init(jax.random.key(7 if kind == "key" and differs else 0))
        outputs = made(state, batch)[1]
    except ProgramError as error:
        print("\n".join(["this is what it is told:", *str(error).splitlines()]), flush=True)
        if kind != "missing":
            part("told", (0, 1))  # the first to end takes the other with it
        raise
    print(f"the sum is {outputs['sum']}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
