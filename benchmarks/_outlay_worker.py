"""One of two processes that train the MLP with Outlay; `processes.py` starts it, and asks for steps on stdin."""

import sys

import jax
from _mlp import example_batch, init_params, losses, optimizer, stepping
from _pair import serve
from jax.sharding import NamedSharding, PartitionSpec

import outlay


def main(mode, layout_name, rank, port):
    outlay.simulate(1)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    mesh = outlay.mesh(data=2)
    batch = example_batch()
    layouts = {"dp": outlay.data_parallel(), "fsdp": outlay.fsdp() + outlay.data_parallel()}
    init, step = outlay.init_state(init_params, optimizer), outlay.train_step(losses, optimizer)
    program = outlay.program(step, init, batch, layout=layouts[layout_name], mesh=mesh, mode=mode)
    everywhere, split = (NamedSharding(mesh, PartitionSpec(*dims)) for dims in ((), ("data",)))
    batch = {
        name: jax.make_array_from_callback(x.shape, split, lambda index, x=x: x[index]) for name, x in batch.items()
    }
    # Each process has the key; that it is the same on all must be said by making it there.
    state = program.init(jax.jit(lambda: jax.random.key(0), out_shardings=everywhere)())

    serve(stepping(program, state, batch))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
