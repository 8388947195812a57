"""Global arrays: made from pieces, from numpy and from a file; cut, fetched, and sent around."""

import outlay

job = outlay.join()

import time

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# --- make
mesh = outlay.mesh(a=2, b=4, over={"a": "hosts"})
line = NamedSharding(outlay.mesh(x=8), P("x"))
whole = np.arange(64).reshape(8, 8)

half = whole[:4] if job.process == 0 else whole[4:]
x = outlay.arrays.from_pieces(half, NamedSharding(mesh, P("a", "b")))
piece = x.addressable_shards[0].data
print(f"from pieces: {x.shape}, my first piece {piece.shape} begins with {np.ravel(piece)[:4]}")

y = outlay.arrays.put(np.ones((2048, 512), np.float32), line)
seconds = []
for verb in (outlay.arrays.put, jax.device_put):
    start = time.perf_counter()
    jax.block_until_ready(verb(np.ones((2048, 512), np.float32), line))
    seconds.append(time.perf_counter() - start)
if job.process == 0:
    print(
        f"numpy onto all devices: jax.device_put takes {seconds[1] / seconds[0]:.0f} times as long as outlay.arrays.put"
    )

data = outlay.arrays.from_file("data.npy", line)
print(f"from a file of {data.nbytes} bytes, I hold {sum(shard.data.nbytes for shard in data.addressable_shards)}")
assert [shard.data[0, 0] for shard in data.addressable_shards] == [8 * i + 32 * job.process for i in range(4)]

four = [d for p in (0, 1) for d in [d for d in jax.devices() if d.process_index == p][:2]]
for a, b in ((2, 2), (1, 4), (4, 1)):
    over = outlay.mesh(a=a, b=b, devices=four, over={"a": "hosts", "b": "hosts"})
    square = outlay.arrays.put(np.zeros((4096, 4096), np.int8), NamedSharding(over, P("a", "b")))
    print(f"(4096, 4096) on {a} x {b} devices: shards of {square.sharding.shard_shape(square.shape)}")

# --- fetch
ones = outlay.arrays.put(np.ones(8), line)
try:
    np.asarray(ones)
except RuntimeError as error:
    print(f"np.asarray: {str(error).splitlines()[0][:60]}...")
print(f"outlay.show says: {str(outlay.show(ones)).splitlines()[-1].strip()}")
print(f"gathered: {outlay.arrays.gather(ones)}")

wide = outlay.mesh(a=4, b=2, over={"a": "hosts"})
table = outlay.arrays.put(np.arange(1024 * 128, dtype=np.int32).reshape(1024, 128), NamedSharding(wide, P("a", "b")))
print(f"(1024, 128) over 4 x 2 devices: pieces of {table.addressable_shards[0].data.shape}")
rows = np.asarray(outlay.arrays.slice_of(table, np.s_[3:9]))
assert (rows == np.arange(1024 * 128).reshape(1024, 128)[3:9]).all()
print(f"rows 3 to 8 of it, in every process: {rows.shape}, first column {rows[:, 0]}")

# --- send
value = np.arange(16) if job.process == 1 else None
print(f"broadcast from process 1: {outlay.arrays.broadcast(value, source=1)}")
print(
    f"scattered from it: {[s.data.tolist() for s in outlay.arrays.scatter(value, line, source=1).addressable_shards]}"
)
try:
    outlay.arrays.scatter(value, line, source=2)
except outlay.errors.PlaceError as error:
    print(f"from process 2: {error}")
