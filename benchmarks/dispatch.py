"""What a call costs: 20 leaves on 8 simulated devices, `Program` against raw `jax.jit` with hand-written shardings.

The step has no collective and hardly any arithmetic, so a call is dispatch. Simulated devices show overhead, not speed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _timing import compare, report
from jax.sharding import NamedSharding, PartitionSpec

import outlay

outlay.simulate(8)

NUM_LEAVES = 20
traces = 0


def step(state, batch):
    global traces
    traces += 1
    return {name: leaf + 1 for name, leaf in state.items()}, {"first": batch + 1}


def init(key):
    return {f"leaf{i}": jax.random.normal(key, (8, 16)) for i in range(NUM_LEAVES)}


mesh = outlay.mesh(data=8)
split = NamedSharding(mesh, PartitionSpec("data"))
batch = jax.device_put(np.ones((8, 4), np.float32), split)

program = outlay.program(step, init, batch, layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=mesh)
placement = jax.tree.map(lambda leaf: leaf.sharding, program.init(jax.random.key(0)))
by_hand = jax.jit(step, in_shardings=(placement, split), out_shardings=(placement, None), donate_argnums=0)

states = {"outlay": program.init(jax.random.key(0)), "hand": jax.device_put(init(jax.random.key(0)), placement)}


def call_outlay():
    states["outlay"], _ = program(states["outlay"], batch)


def call_by_hand():
    states["hand"], _ = by_hand(states["hand"], batch)


call_outlay(), call_by_hand()
traces_before = traces
tested, reference, ratio = compare(call_outlay, call_by_hand, rounds=60, calls=100)
np.testing.assert_array_equal(jnp.asarray(states["outlay"]["leaf3"]), jnp.asarray(states["hand"]["leaf3"]))
report("dispatch of 20 leaves on 8 simulated devices", tested, reference, ratio, bar=1.05)
print(f"traces during {60 * 100} further calls of each: {traces - traces_before}")
