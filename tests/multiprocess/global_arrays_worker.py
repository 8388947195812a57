"""One of several processes that make, fetch and move global arrays, and write down what they saw.

    python global_arrays_worker.py ID NUM_PROCESSES PORT FOLDER

Every function here is one experiment; what it returns is JSON, which test_global_arrays.py judges.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.arrays import gather_scatter

EXAMPLES = Path(__file__).parents[2] / "examples"


def mesh_of(**options: Any) -> Mesh:
    """A mesh any axis of which may run over both processes."""
    sizes = [name for name in options if name not in ("devices", "explicit")]
    return outlay.mesh(**options, over=dict.fromkeys(sizes, "hosts"))


def placed(value: Any, spec: P, **axes: int) -> jax.Array:
    return outlay.arrays.put(value, NamedSharding(mesh_of(**axes), spec))


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def memory_peak() -> int:
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def file_by_slices(folder: Path) -> Any:
    rows = NamedSharding(mesh_of(x=8), P("x"))
    outlay.arrays.from_file(
        folder / "small.npy", rows
    ).block_until_ready()  # so that what loads on first use is not counted
    before = memory_peak()
    x = outlay.arrays.from_file(folder / "large.npy", rows)
    x.block_until_ready()
    grown = memory_peak() - before
    first = [int(shard.data[0, 0]) for shard in x.addressable_shards]
    return {"grown": grown, "bytes": x.nbytes, "first": first}


def zarr_by_slices(folder: Path) -> Any:
    x = outlay.arrays.from_file(folder / "x.zarr", NamedSharding(mesh_of(a=2, b=4), P("a", "b")))
    return [shard.data.tolist() for shard in x.addressable_shards]


def file_missing_in_one(folder: Path) -> Any:
    name = "small.npy" if jax.process_index() == 0 else "gone.npy"
    return error_of(lambda: outlay.arrays.from_file(folder / name, NamedSharding(mesh_of(x=8), P("x"))))


def shard_shapes(_: Path) -> Any:
    devices = [d for process in (0, 1) for d in [d for d in jax.devices() if d.process_index == process][:2]]
    value = np.zeros((4096, 4096), np.int8)
    shapes = []
    for a, b in ((2, 2), (1, 4), (4, 1)):
        x = outlay.arrays.put(value, NamedSharding(mesh_of(a=a, b=b, devices=devices), P("a", "b")))
        shapes.append([list(shard.data.shape) for shard in x.addressable_shards])
    return shapes


def devices_shown(_: Path) -> Any:
    return {"local": jax.local_device_count(), "text": str(outlay.show(placed(np.arange(8), P("x"), x=8)))}


def local_array(_: Path) -> Any:
    return str(outlay.show(jnp.ones(4)))


def put_without_comparing(_: Path) -> Any:
    rows = NamedSharding(mesh_of(x=8), P("x"))
    own_leaf = outlay.arrays.put({"w": np.full(8, jax.process_index())}, rows)["w"]
    tree = {"same": np.arange(8), "w": np.full(8, jax.process_index())}
    return {
        "device_put": error_of(lambda: jax.device_put(tree["w"], rows)),
        "mine": [int(shard.data[0]) for shard in own_leaf.addressable_shards],
        "checked": error_of(lambda: outlay.arrays.put(tree, rows, check_equal=True)),
        "equal": outlay.arrays.put({"same": tree["same"]}, rows, check_equal=True)["same"].shape,
    }


def put_a_plan(_: Path) -> Any:
    mesh = mesh_of(data=8)
    tree = {"w": np.arange(16, dtype=np.float32), "b": np.float32(3), "key": jax.random.key(7)}
    layout = outlay.Layout([("w", P("data"))]) + outlay.replicate()
    state = outlay.arrays.put(tree, layout.plan(tree, mesh), mesh)
    draw = jax.jit(lambda key: jax.random.normal(key, (2,)))(state["key"])
    return {
        "w": outlay.arrays.gather(state["w"]).tolist(),
        "b": float(state["b"]),
        "key": np.asarray(draw).tolist() == jax.random.normal(jax.random.key(7), (2,)).tolist(),
    }


def written_later(_: Path) -> Any:
    buffer = np.zeros(4096 + 16, np.float32)
    aligned = buffer[(-buffer.ctypes.data % 64) // 4 :][:4096]
    x = placed(aligned, P("x"), x=8)
    aligned[:] = 7
    return float(outlay.arrays.gather(x).max())


def pieces(_: Path) -> Any:
    mesh = mesh_of(a=2, b=4)
    whole = np.arange(64).reshape(8, 8)
    own = whole[:4] if jax.process_index() == 0 else whole[4:]
    x = outlay.arrays.from_pieces(own, NamedSharding(mesh, P("a", "b")))
    line = outlay.arrays.from_pieces(np.arange(4) + 4 * jax.process_index(), NamedSharding(mesh_of(x=8), P("x")))
    return {
        "first": x.addressable_shards[0].data.tolist(),
        "whole": outlay.arrays.gather(x).tolist() == whole.tolist(),
        "line": outlay.arrays.gather(line).tolist(),
        "picture": str(outlay.show(line)),
    }


def pieces_of_wrong_shapes(_: Path) -> Any:
    rows = NamedSharding(mesh_of(x=8), P("x"))
    short = np.ones((4 if jax.process_index() == 0 else 3, 2), np.float32)
    other = np.ones(4, [np.float32, np.int32][jax.process_index()])
    in_turn = np.array([jax.devices()[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)])
    apart = NamedSharding(Mesh(in_turn, ("x",), axis_types=(AxisType.Auto,)), P("x"))
    return {
        "short": error_of(lambda: outlay.arrays.from_pieces(short, rows)),
        "dtype": error_of(lambda: outlay.arrays.from_pieces(other, rows)),
        "shape": error_of(lambda: outlay.arrays.from_pieces(np.ones(4), rows, shape=(16,))),
        "apart": error_of(lambda: outlay.arrays.from_pieces(np.ones(4), apart)),
    }


def fetching(_: Path) -> Any:
    x = placed(np.arange(8), P("x"), x=8)
    return {"asarray": error_of(lambda: np.asarray(x)), "show": str(outlay.show(x))}


def gathered(_: Path) -> Any:
    x = placed(np.ones(8, np.float32), P("x"), x=8)
    one = outlay.arrays.gather({"x": x}, to=1)["x"]
    strange = placed(np.array([-0.0, np.nan, 1, 2, 3, 4, 5, 6], jnp.bfloat16), P("x"), x=8)
    explicit = mesh_of(a=4, b=2, explicit=True)
    typed = outlay.arrays.put(np.arange(32).reshape(8, 4), NamedSharding(explicit, P("b", "a")))
    gather_scatter.MOST_BYTES = 100
    value = np.arange(24 * 20, dtype=np.int16).reshape(24, 20)
    by_slabs = [outlay.arrays.gather(placed(value, spec, a=4, b=2)) for spec in (P("a", "b"), P("b"), P(None, "a"))]
    only = outlay.arrays.gather(placed(value, P("a", "b"), a=4, b=2), to=0)
    gather_scatter.MOST_BYTES = 2**26
    return {
        "ones": outlay.arrays.gather(x).tolist(),
        "to one": None if one is None else one.tolist(),
        "bits": outlay.arrays.gather(strange).view(np.uint16).tolist()
        == np.asarray([-0.0, np.nan, 1, 2, 3, 4, 5, 6], jnp.bfloat16).view(np.uint16).tolist(),
        "explicit": outlay.arrays.gather(typed).tolist() == np.arange(32).reshape(8, 4).tolist(),
        "slabs": [bool((one == value).all()) for one in by_slabs],
        "slabs to one": None if only is None else bool((only == value).all()),
        "nobody": error_of(lambda: outlay.arrays.gather(x, to=2)),
    }


def pencils(_: Path) -> Any:
    mesh = mesh_of(a=4, b=2)
    value = np.arange(64).reshape(8, 8)
    x = outlay.arrays.put(value, NamedSharding(mesh, P("a", "b")))
    y = outlay.arrays.reshard(x, NamedSharding(mesh, P("b", "a")))
    own = [bool((np.asarray(shard.data) == value[shard.index]).all()) for shard in y.addressable_shards]
    return {
        "ab": outlay.show(x).blocks.by_position,
        "ba": outlay.show(y).blocks.by_position,
        "text": str(outlay.show(x)),
        "own": own,
        "same": bool((outlay.arrays.gather(y) == value).all()),
    }


def moved(_: Path) -> Any:
    """States of one half of the devices, of all, of the middle, and where they go; a process has what lives with it."""
    value = np.arange(128, dtype=np.float32).reshape(8, 16)
    keys = jax.random.split(jax.random.key(3), 4)

    def place(some: slice, spec: P) -> NamedSharding:
        devices = jax.devices()[some]
        return NamedSharding(mesh_of(x=len(devices), devices=devices), spec)

    left, right, middle, whole = slice(4), slice(4, 8), slice(2, 6), slice(8)
    places = {
        "trainer to sampler": (place(left, P("x")), place(right, P(None, "x"))),
        "to whole copies": (place(left, P("x")), place(right, P())),
        "to more devices": (place(right, P("x")), place(whole, P("x"))),
        "to the middle": (place(whole, P(None, "x")), place(middle, P("x"))),
        "within a process": (place(left, P("x")), place(left, P(None, "x"))),
    }
    seen = {}
    for name, (old, new) in places.items():
        is_here = any(device.process_index == jax.process_index() for device in old.device_set)
        state = {"w": value, "bits": value % 3 == 0, "step": np.int32(7)}
        at = {"w": old, "bits": old, "step": NamedSharding(old.mesh, P())}
        shapes = jax.tree.map(lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), state, at)
        there = jax.tree.map(lambda x, to: outlay.arrays.put(x, to.sharding), state, shapes) if is_here else shapes
        after = outlay.arrays.move({key: there[key] for key in ("w", "bits")}, new)
        after |= outlay.arrays.move({"step": there["step"]}, NamedSharding(new.mesh, P()))
        shards = [(shard.data, state[key][shard.index]) for key in after for shard in after[key].addressable_shards]
        seen[name] = {
            "own": [bool((np.asarray(data) == expected).all()) for data, expected in shards],
            "spec": [after[key].sharding.is_equivalent_to(new, 2) for key in ("w", "bits")],
            "bytes": outlay.arrays.plan_move(shapes["w"], new).bytes_moved,
        }
    rows, across = NamedSharding(mesh_of(x=2, devices=jax.devices()[3:5]), P("x")), place(whole, P())
    after = outlay.arrays.move(outlay.arrays.put(keys, rows), across)
    own = [shard.data for shard in after.addressable_shards]
    seen["keys"] = {"own": [bool((jax.random.key_data(x) == jax.random.key_data(keys)).all()) for x in own]}
    local = jax.device_put(value, jax.local_devices()[0])
    seen["error"] = error_of(lambda: outlay.arrays.move({"w": local}, across))
    return seen


def fft(_: Path) -> Any:
    return runpy.run_path(str(EXAMPLES / "pencil_fft.py"))["error"]


def sliced(_: Path) -> Any:
    x = placed(np.arange(64).reshape(16, 4), P("x"), x=8)
    wide = NamedSharding(mesh_of(x=8), P(None, "x"))
    big = placed(np.arange(1024 * 128, dtype=np.int32).reshape(1024, 128), P("a", "b"), a=4, b=2)
    explicit = mesh_of(x=8, explicit=True)
    typed = outlay.arrays.put(np.arange(16), NamedSharding(explicit, P("x")))
    return {
        "piece": list(big.addressable_shards[0].data.shape),
        "3:9": np.asarray(outlay.arrays.slice_of(x, np.s_[3:9])).tolist(),
        "placed": str(
            outlay.arrays.slice_of(placed(np.arange(128).reshape(16, 8), P("x"), x=8), np.s_[3:9], wide).sharding.spec
        ),
        "explicit": np.asarray(outlay.arrays.slice_of(typed, np.s_[3:9])).tolist(),
    }


def from_one(_: Path) -> Any:
    me = jax.process_index()
    rows = NamedSharding(mesh_of(x=8), P("x"))
    value = np.arange(16, dtype=np.float64) if me == 1 else None
    x = outlay.arrays.scatter(value, rows, source=1)
    large = np.arange(24 * 20, dtype=np.int16).reshape(24, 20)
    gather_scatter.MOST_BYTES = 100
    blocks = NamedSharding(mesh_of(a=4, b=2), P("b", "a"))
    by_slabs = outlay.arrays.gather(outlay.arrays.scatter(large if me == 0 else None, blocks))
    gather_scatter.MOST_BYTES = 2**26
    return {
        "scattered": [shard.data.tolist() for shard in x.addressable_shards],
        "slabs": bool((by_slabs == large).all()),
        "broadcast": outlay.arrays.broadcast(value, source=1).tolist(),
        "bits": outlay.arrays.broadcast(np.array([-0.0, np.nan, 2**53 + 1.0]) if me == 0 else None)
        .view(np.int64)
        .tolist(),
        "nobody": error_of(lambda: outlay.arrays.scatter(value, rows, source=2)),
        "nothing": error_of(lambda: outlay.arrays.broadcast(value, source=0)),
        "two sources": error_of(lambda: outlay.arrays.broadcast(np.ones(3), source=me)),
        "does not divide": error_of(lambda: outlay.arrays.scatter(np.ones(12) if me == 0 else None, rows)),
    }


def values_that_come_in(folder: Path) -> Any:
    """NumPy's dtypes of 64 bits, in both processes or in one; and values that one process alone sees are odd."""
    me, mesh = jax.process_index(), mesh_of(x=8)
    rows = NamedSharding(mesh, P("x"))
    beyond = np.array([0, 2**40, 2, 3]) if me == 1 else np.arange(4)
    labels = np.arange(16) % 3
    program = outlay.program(
        lambda state, batch: {"sum": batch["label"].sum()},
        lambda key: 0.0,
        {"label": labels[:8]},
        layout=outlay.data_parallel("x"),
        mesh=mesh,
        donate=False,
    )
    data = outlay.TrainData({"label": labels}, batch_size=8)
    keys = jax.random.split(jax.random.key(5), 8)
    ways = {
        "pieces": outlay.arrays.from_pieces(np.arange(4, dtype=np.int64 if me else np.int32), rows),
        "put": outlay.arrays.put(np.arange(8).astype(">i8"), rows),
        "scatter": outlay.arrays.scatter(np.arange(8) if me == 1 else None, rows, source=1),
    }
    made = [
        outlay.arrays.from_pieces(keys[4 * me : 4 * me + 4], rows),
        outlay.arrays.scatter(keys if me == 0 else None, rows),
        outlay.arrays.put(keys, rows),
    ]
    want = np.asarray(jax.random.key_data(keys))
    return {
        **{name: [str(x.dtype), outlay.arrays.gather(x).tolist()] for name, x in ways.items()},
        "keys": [bool((outlay.arrays.gather(jax.random.key_data(x)) == want).all()) for x in made],
        "labels": int(program(outlay.arrays.put(0.0, NamedSharding(mesh, P())), data.on(program)[0])["sum"]),
        "expected labels": int(data[0]["label"].sum()),
        "beyond": error_of(lambda: outlay.arrays.from_pieces(beyond, rows)),
        "masked": error_of(lambda: outlay.arrays.scatter(np.ma.array([1.0] * 8, mask=[1] * 8), rows)),
        "file": error_of(lambda: outlay.arrays.from_file(folder / "beyond.npy", rows)),
        "text": error_of(lambda: outlay.arrays.from_file(folder / "text.npy", rows)),
    }


def halos(_: Path) -> Any:
    x = placed(np.arange(16), P("x"), x=8)
    mesh = x.sharding.mesh
    wide = jax.shard_map(
        lambda p: outlay.collectives.halo(p, "x", periodic=True), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return outlay.arrays.gather(wide(x)).reshape(8, 4).tolist()


def long_words(_: Path) -> Any:
    """What the processes say to each other may be longer than one round."""
    from outlay.arrays.process_agreement import exchange

    return [len(word) for word in exchange("x" * (10 + 5000 * jax.process_index()))]


def barrier(_: Path) -> Any:
    from outlay.train.multihost import wait_for_all

    time.sleep(jax.process_index())
    came = time.time()
    wait_for_all("all are here")
    return {"came": came, "left": time.time()}


EXPERIMENTS = (
    file_by_slices, zarr_by_slices, file_missing_in_one, shard_shapes, devices_shown, local_array,
    put_without_comparing, put_a_plan, written_later, pieces, pieces_of_wrong_shapes, fetching, gathered, pencils,
    moved, fft, sliced, from_one, values_that_come_in, halos, long_words, barrier,
)  # fmt: skip


def main(process: int, num_processes: int, port: str, folder: Path) -> None:
    outlay.join(process=process, num_processes=num_processes, coordinator=f"127.0.0.1:{port}", timeout=280)
    seen = {experiment.__name__: experiment(folder) for experiment in EXPERIMENTS}
    (folder / f"{process}.json").write_text(json.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(13)  # a plain exit would wait for the other process, which waits for this one
