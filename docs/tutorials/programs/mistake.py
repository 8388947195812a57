"""Two processes, of which process 1 makes a mistake the first time that the job is started."""

import outlay

job = outlay.join()

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

rows = NamedSharding(outlay.mesh(x=-1), P("x"))
x = jax.jit(lambda: jnp.arange(8.0), out_shardings=rows)()
rates = {"learning_rate": 0.1}
if job.process == 1 and job.restart == 0:
    x = x + rates["learnig_rate"]
print(f"the sum is {x.sum()}")
