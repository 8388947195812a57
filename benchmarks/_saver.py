"""One process of those that restore the newest checkpoint of a folder, check it, and save until they are killed."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import outlay

KEEP = 3


def main(folder):
    if outlay.join().num_processes == 1:
        outlay.simulate(2)
    checkpoints = outlay.Checkpoints(folder, keep=KEEP)
    program = outlay.program(
        lambda state, batch: (jax.tree.map(lambda x: x + 1, state), {"mean": batch.mean()}),
        lambda key: {"split": jnp.zeros((512, 1024)), "whole": jnp.zeros(1024)},
        np.ones(8, np.float32),
        layout=[("split", jax.P("data")), ("whole", jax.P()), *outlay.data_parallel()],
        mesh=outlay.mesh(data=jax.device_count()),
    )
    say(f"pid {os.getpid()}", of_all=True)
    step, state = 0, program.init(jax.random.key(0))
    if checkpoints.exist():
        saved_steps = checkpoints.steps()
        step, state = checkpoints.restore(program)
        held = {
            float(value) for x in state.values() for shard in x.addressable_shards for value in np.unique(shard.data)
        }
        say(f"restored {step} holding {held == {step}} of {saved_steps}")
    while True:
        state, _ = program(state, np.ones(8, np.float32))
        step += 1
        say(f"saving {step}")
        checkpoints.save(step, state)
        checkpoints.wait()
        say(f"saved {step}")


def say(text, *, of_all=False):
    if of_all or jax.process_index() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
