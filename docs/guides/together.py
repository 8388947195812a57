"""What all processes compute together; `together.py fail` has process 1 make a mistake on the way."""

import sys

import outlay

job = outlay.join()

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

mesh = outlay.mesh(data=-1)
numbers = jax.jit(lambda: jnp.arange(8.0), out_shardings=jax.NamedSharding(mesh, P("data")))()
if sys.argv[1:] == ["fail"] and job.process == 1:
    numbers = numbers + {"learning_rate": 0.1}["learnig_rate"]
print(f"I hold {[shard.data.tolist() for shard in numbers.addressable_shards]}, the sum is {numbers.sum()}")
