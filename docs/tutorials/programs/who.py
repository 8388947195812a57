"""What each process knows of itself, and of an array that is spread over all of them."""

import outlay

job = outlay.join()

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

x = outlay.arrays.put(np.arange(8), NamedSharding(outlay.mesh(x=-1), P("x")))

print(f"I am process {job.process} of {job.num_processes}")
print(f"{len(x.sharding.device_set)} devices hold x, {jax.local_device_count()} of them are mine")
print(
    f"a shard is {x.sharding.shard_shape(x.shape)}, mine are {[shard.data.tolist() for shard in x.addressable_shards]}"
)
print(f"fully addressable: {x.is_fully_addressable}, fully replicated: {x.is_fully_replicated}")
print(outlay.show(x))
print(outlay.show(jnp.ones(4)))
