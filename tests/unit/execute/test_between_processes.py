"""Collectives between processes: equal to JAX's own on simulated devices, and a program of two real processes."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.execute import between_processes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 12, 4)).astype(np.float32)


def on_rows(function, out_specs=P(("i", "j")), **choices):
    """What it makes of each device's own part of X, (12, 4), on a mesh where two devices are pairs along j."""
    mesh = outlay.mesh(i=4, j=2)
    mapped = jax.shard_map(
        lambda x: function(x[0])[None], mesh=mesh, in_specs=P(("i", "j")), out_specs=out_specs, **choices
    )
    return np.asarray(jax.jit(mapped)(X))


def test_an_exchange_gives_both_of_a_pair_their_sum():
    got = on_rows(lambda x: between_processes.exchange_and_add(x, ("j",)))
    pairs = X.reshape(4, 2, 12, 4).sum(1, keepdims=True)
    np.testing.assert_allclose(got.reshape(4, 2, 12, 4), np.broadcast_to(pairs, (4, 2, 12, 4)), rtol=1e-6)


@pytest.mark.parametrize(("axes", "dim"), [(("j",), 0), (("j",), 1), (("i",), 0), (("i",), 1)])
def test_scatter_is_psum_scatter(axes, dim):
    got = on_rows(lambda x: between_processes.scatter(x, axes, dim))
    want = on_rows(lambda x: jax.lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1])
def test_gather_is_all_gather_and_so_is_its_gradient(dim):
    def all_gather(x, axes, dim):
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)

    def gradient(gather):
        return lambda x: jax.grad(lambda piece: (gather(piece, ("i", "j"), dim) ** 3 * x[0, 0]).sum())(x)

    for way in (lambda gather: lambda x: gather(x, ("i", "j"), dim), gradient):
        got, want = (on_rows(way(gather)) for gather in (between_processes.gather, all_gather))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_devices_of_one_process_are_not_apart():
    mesh = outlay.mesh(i=4, j=2)
    assert not between_processes.are_apart(mesh, ("i", "j"))
    assert not between_processes.are_pairs(mesh, ("j",))


# The program prints the largest difference to one device's parameters after some steps, and the collectives it uses.
ONE_OF_TWO = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax, outlay
from jax.sharding import NamedSharding, PartitionSpec as P
from outlay.execute.between_processes import are_apart, are_pairs

rank, port, num_devices = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
outlay.simulate(num_devices)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
# Along data a pair of devices is of two processes; along model both are of one.
mesh = outlay.mesh(data=2) if num_devices == 1 else outlay.mesh(data=2, model=2)
assert are_pairs(mesh, ("data",))
if num_devices == 2:
    assert are_apart(mesh, ("data", "model")) and not are_apart(mesh, ("model",))
    assert not are_pairs(mesh, ("data", "model")) and not are_pairs(mesh, ("model",))

generator = np.random.default_rng(0)
batch = {"x": generator.normal(size=(16, 8)).astype("f"), "y": generator.normal(size=(16, 4)).astype("f")}
split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
given = {name: jax.make_array_from_callback(x.shape, split, lambda i, x=x: x[i]) for name, x in batch.items()}

def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(4)}

def loss(params, batch, keys):
    return ((jnp.tanh(batch["x"] @ params["w"]) + params["b"] - batch["y"]) ** 2).mean(1), {}

optimizer = optax.sgd(0.1, momentum=0.9)
step, init_state = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
alone = jax.jit(init_state)(jax.random.key(0))
for _ in range(3):
    alone, _ = jax.jit(step)(alone, batch)

layouts = {
    "dp": outlay.data_parallel(), "fsdp": outlay.fsdp(min_size=2) + outlay.data_parallel(),
    "zero2": outlay.zero2(min_size=2) + outlay.data_parallel(),
}
for name, layout in layouts.items():
    program = outlay.program(step, init_state, batch, layout=layout, mesh=mesh, mode="manual")
    state = program.init(jax.jit(lambda: jax.random.key(0), out_shardings=whole)())
    for _ in range(3):
        state, _ = program(state, given)
    worst = 0.0
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params)):
        for shard in got.addressable_shards:
            worst = max(worst, np.abs(np.asarray(shard.data) - np.asarray(want)[shard.index]).max())
    assert worst < 1e-6, (name, worst)
    text = program.lowered.as_text()
    collectives = ("collective_permute", "all_to_all", "reduce_scatter", "all_reduce")
    print(name, *(found for found in collectives if found in text))
"""
SET_BY_SIMULATE = ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS", "JAX_PLATFORM_NAME")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("num_devices", "whole"), [(1, "collective_permute"), (2, "all_reduce")])
def test_two_processes_train_as_one_device_does(num_devices, whole):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    clean = {name: value for name, value in os.environ.items() if name not in SET_BY_SIMULATE}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, str(rank), port, str(num_devices)],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=200) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said[0][1][-3000:] + said[1][1][-3000:]
    lines = said[0][0].splitlines()  # gloo says there, too, that it has connected
    found = dict(line.split(maxsplit=1) for line in lines if line.startswith(("dp", "fsdp", "zero2")))
    split = "collective_permute all_to_all" if num_devices == 1 else "all_to_all all_reduce"
    assert found == {"dp": whole, "fsdp": split, "zero2": split}
