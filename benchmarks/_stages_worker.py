"""One of two processes that are stages of the MLP with Outlay; `pipeline_processes.py` starts it, and asks."""

import sys

import jax
import jax.numpy as jnp
from _mlp import BATCH, DEPTH, WIDTH, example_batch, optimizer, stepping
from _pair import serve
from jax.sharding import NamedSharding, PartitionSpec

import outlay


def init_params(key):
    return {
        "kernel": jax.random.normal(key, (DEPTH, WIDTH, WIDTH)) / 32,
        "bias": jnp.zeros((DEPTH, WIDTH)),
    }


def loss(params, batch, keys):
    def layer(x, leaves):
        return jnp.tanh(x @ leaves["kernel"] + leaves["bias"]), None

    x, _ = jax.lax.scan(layer, batch["x"], params)
    return jnp.mean((x - batch["y"]) ** 2, axis=-1), {}


def main(schedule, samples, microbatches, rank, port):
    outlay.simulate(1)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    mesh = outlay.mesh(stage=2, over={"stage": "hosts"})
    batch = {name: jnp.tile(x, (samples // BATCH, 1)) for name, x in example_batch().items()}
    everywhere = NamedSharding(mesh, PartitionSpec())
    batch = {name: jax.make_array_from_callback(x.shape, everywhere, lambda _, x=x: x) for name, x in batch.items()}
    layers = ("params.**", outlay.layout.pipeline("stage", microbatches=microbatches))
    rules = [layers, ("**", outlay.replicate()), ("batch.**", outlay.replicate())]
    program = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        batch,
        layout=rules,
        mesh=mesh,
        mode="placed",
        schedule=schedule,
    )
    state = program.init(jax.jit(lambda: jax.random.key(0), out_shardings=everywhere)())

    serve(stepping(program, state, batch))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
