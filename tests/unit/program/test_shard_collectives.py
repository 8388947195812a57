"""Collectives between processes: equal to JAX's own on simulated devices, and a program of two real processes."""

import socket
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests import forks
from tests.unit.cli.command import environment

import outlay
from outlay.program import shard_collectives
from outlay.program.shard_collectives import sum_in_buckets

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 12, 4)).astype(np.float32)
BOTH, ONE, NONE = ("i", "j"), ("i",), ()


def on_rows(function, out_specs=P(("i", "j")), **choices):
    """What it makes of each device's own part of X, (12, 4), on a mesh where two devices are pairs along j."""
    mesh = outlay.mesh(i=4, j=2)
    mapped = jax.shard_map(
        lambda x: function(x[0])[None], mesh=mesh, in_specs=P(("i", "j")), out_specs=out_specs, **choices
    )
    return np.asarray(jax.jit(mapped)(X))


def test_an_exchange_gives_both_of_a_pair_their_sum():
    got = on_rows(lambda x: shard_collectives.exchange_and_add(x, ("j",)))
    pairs = X.reshape(4, 2, 12, 4).sum(1, keepdims=True)
    np.testing.assert_allclose(got.reshape(4, 2, 12, 4), np.broadcast_to(pairs, (4, 2, 12, 4)), rtol=1e-6)


@pytest.mark.parametrize(("axes", "dim"), [(("j",), 0), (("j",), 1), (("i",), 0), (("i",), 1)])
def test_scatter_is_psum_scatter(axes, dim):
    got = on_rows(lambda x: shard_collectives.scatter_apart(x, axes, dim))
    want = on_rows(lambda x: jax.lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1])
def test_gather_is_all_gather_and_so_is_its_gradient(dim):
    def all_gather(x, axes, dim):
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)

    def gradient(gather):
        return lambda x: jax.grad(lambda piece: (gather(piece, ("i", "j"), dim) ** 3 * x[0, 0]).sum())(x)

    for way in (lambda gather: lambda x: gather(x, ("i", "j"), dim), gradient):
        got, want = (on_rows(way(gather)) for gather in (shard_collectives.gather_apart, all_gather))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_devices_of_one_process_are_not_apart():
    mesh = outlay.mesh(i=4, j=2)
    assert not shard_collectives.are_apart(mesh, ("i", "j"))
    assert not shard_collectives.are_pairs(mesh, ("j",))


# The program says which collectives each layout uses, on meshes with one device of each process and with two.
ONE_OF_TWO = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax, outlay
from jax.sharding import NamedSharding, PartitionSpec as P
from outlay.program.shard_collectives import are_apart, are_pairs

rank, port = int(sys.argv[1]), sys.argv[2]
outlay.simulate(2)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
# Along data a pair of devices is of two processes; along model both are of one.
one_each = [next(d for d in jax.devices() if d.process_index == process) for process in (0, 1)]
meshes = {1: outlay.mesh(data=2, devices=one_each), 2: outlay.mesh(data=2, model=2)}
assert all(are_pairs(mesh, ("data",)) for mesh in meshes.values())
assert are_apart(meshes[2], ("data", "model")) and not are_apart(meshes[2], ("model",))
assert not are_pairs(meshes[2], ("data", "model")) and not are_pairs(meshes[2], ("model",))

generator = np.random.default_rng(0)
batch = {"x": generator.normal(size=(16, 8)).astype("f"), "y": generator.normal(size=(16, 4)).astype("f")}

def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(4)}

def loss(params, batch, keys):
    return ((jnp.tanh(batch["x"] @ params["w"]) + params["b"] - batch["y"]) ** 2).mean(1), {}

optimizer = optax.sgd(0.1, momentum=0.9)
step, init_state = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
begun, step_alone = jax.device_get(jax.jit(init_state)(jax.random.key(0))), jax.jit(step)
alone = begun
for _ in range(2):
    alone, _ = step_alone(alone, batch)

def train(layout, mesh):
    split = NamedSharding(mesh, P("data"))
    given = {name: jax.make_array_from_callback(x.shape, split, lambda i, x=x: x[i]) for name, x in batch.items()}
    program = outlay.program(step, init_state, batch, layout=layout, mesh=mesh, mode="manual")
    state = outlay.arrays.put(begun, program.plan, mesh)
    for _ in range(2):
        state, _ = program(state, given)
    worst = 0.0
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params)):
        for shard in got.addressable_shards:
            worst = max(worst, np.abs(np.asarray(shard.data) - np.asarray(want)[shard.index]).max())
    assert worst < 1e-6, worst
    return program.lowered.as_text()

layouts = {
    "dp": outlay.data_parallel(), "fsdp": outlay.fsdp(min_size=2) + outlay.data_parallel(),
    "zero2": outlay.zero2(min_size=2) + outlay.data_parallel(),
}
# FSDP and ZeRO-2 scatter alike, and what FSDP gathers it gathers on one device of each process too.
tried = {1: ("dp", "fsdp"), 2: ("dp", "zero2")}
collectives = ("collective_permute", "all_to_all", "reduce_scatter", "all_reduce")
for num_devices, mesh in meshes.items():
    for name in tried[num_devices]:
        text = train(layouts[name], mesh)
        print("uses", num_devices, name, *(found for found in collectives if found in text))
"""


@pytest.fixture(scope="module")
def outputs_of_both():
    """What the first of two processes says: lines of words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = [
        subprocess.Popen(
            [forks.python(), "-c", ONE_OF_TWO, str(rank), port],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], outputs[0][1][-3000:] + outputs[1][1][-3000:]
    return [line.split() for line in outputs[0][0].splitlines()]  # gloo says there, too, that it has connected


@pytest.mark.thorough  # test_run.py has two processes
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("num_devices", "used"),
    [
        (1, {"dp": "collective_permute", "fsdp": "collective_permute all_to_all"}),
        (2, {"dp": "all_reduce", "zero2": "all_to_all all_reduce"}),
    ],
)
def test_two_processes_train_as_one_device_does(outputs_of_both, num_devices, used):
    collectives = {
        words[2]: " ".join(words[3:]) for words in outputs_of_both if words[:2] == ["uses", str(num_devices)]
    }
    assert collectives == used


def lowered(tree, axes):
    """Each device adds up its own row of every leaf; the function, ready to be read or run."""
    mesh, rows = outlay.mesh(i=4, j=2), P(("i", "j"))

    def summed(tree):
        return jax.tree.map(lambda x: x[None], sum_in_buckets(jax.tree.map(lambda x: x[0], tree), axes, mesh))

    return jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=rows, out_specs=rows)).lower(tree)


def num_all_reduces(tree, axes):
    return lowered(tree, axes).as_text().count("stablehlo.all_reduce")


def floats(*shape):
    return RNG.normal(size=(8, *shape)).astype(np.float32)


def test_each_leaf_is_summed_over_its_axes():
    tree = {"both": floats(3, 2), "scalar": floats(), "one": floats(4), "none": [floats(2)]}
    got = lowered(tree, {"both": BOTH, "scalar": BOTH, "one": ONE, "none": [NONE]}).compile()(tree)
    for name in ("both", "scalar"):
        np.testing.assert_allclose(got[name], np.broadcast_to(tree[name].sum(0), tree[name].shape), rtol=1e-5)
    over_i = tree["one"].reshape(4, 2, 4).sum(0)
    np.testing.assert_allclose(got["one"], np.tile(over_i, (4, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["none"][0], tree["none"][0])


def test_leaves_of_one_dtype_and_the_same_axes_share_a_collective():
    many = [floats(n + 1, 2) for n in range(6)]
    assert num_all_reduces(many, [BOTH] * 6) == 1
    assert num_all_reduces(many, [BOTH] * 3 + [ONE] * 3) == 2
    assert num_all_reduces([*many, floats().astype(jnp.bfloat16)], [BOTH] * 7) == 2
    assert num_all_reduces(many, [NONE] * 6) == 0


def test_buckets_are_of_limited_size_and_hold_every_leaf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_collectives, "BUCKET_BYTES", 40)
    many = [floats(n) for n in (5, 5, 1, 30, 2)]  # 20 + 20 | 4 | 120 | 8 bytes on each device
    assert num_all_reduces(many, [BOTH] * 5) == 4
    for got, x in zip(lowered(many, [BOTH] * 5).compile()(many), many, strict=True):
        np.testing.assert_allclose(got[3], x.sum(0), rtol=1e-5, atol=1e-6)


def test_a_tree_without_leaves_is_left_alone():
    assert sum_in_buckets({"a": []}, {"a": []}, outlay.mesh(i=8)) == {"a": []}


def test_a_big_leaf_is_summed_without_a_copy_and_xla_makes_it_one_collective_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shard_collectives, "OWN_BYTES", 100)
    many = [floats(5), floats(30), floats(1)]  # 20, 120 and 4 bytes on each device
    assert num_all_reduces(many, [BOTH] * 3) == 2
    assert lowered(many, [BOTH] * 3).compile().as_text().count(" all-reduce(") == 1
    assert "concatenate" not in lowered([floats(30)], [BOTH]).as_text()
    for got, x in zip(lowered(many, [BOTH] * 3).compile()(many), many, strict=True):
        np.testing.assert_allclose(got[3], x.sum(0), rtol=1e-5, atol=1e-6)
