"""A global array between two layouts of the same mesh, and a 3-D FFT that needs three of them."""

import outlay

job = outlay.join()

import runpy

import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

mesh = outlay.mesh(a=4, b=2, over={"a": "hosts"})
value = np.arange(64).reshape(8, 8)
x = outlay.arrays.put(value, NamedSharding(mesh, P("a", "b")))
y = outlay.arrays.reshard(x, NamedSharding(mesh, P("b", "a")))
if job.process == 0:
    print(outlay.show(x))
    print(outlay.show(y))

# Where it was redistributed for real, each device now holds other numbers, and the whole is what it was.
for shard in y.addressable_shards:
    assert (np.asarray(shard.data) == value[shard.index]).all()
assert (outlay.arrays.gather(y) == value).all()
print("same values")

runpy.run_path("pencil_fft.py")
