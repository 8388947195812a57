"""One process of those that train the MLP with as many samples each, however many they are; see `weak_scaling.py`."""

import sys

import jax
from _mlp import example_batch, init_params, losses, optimizer
from _pair import serve

import outlay


def main(mode, num_processes, rank, port):
    outlay.simulate(1)
    outlay.join(process=rank, num_processes=num_processes, coordinator=f"127.0.0.1:{port}")
    mesh = outlay.mesh(data=num_processes)
    rows = jax.NamedSharding(mesh, jax.P("data"))
    batch = {name: outlay.arrays.from_pieces(x, rows) for name, x in example_batch().items()}
    init, step = outlay.init_state(init_params, optimizer), outlay.train_step(losses, optimizer)
    program = outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=mesh, mode=mode)
    state = program.init(jax.random.key(0))

    def run(num_steps):
        nonlocal state
        for _ in range(num_steps):
            state, metrics = program(state, batch)
        return float(metrics["loss"])

    serve(run)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
