"""A training step of a 4 x 1024 MLP (Adam, batch 64) under FSDP: Outlay against the same written by hand in JAX.

Eight simulated devices share this machine, so the times say what Outlay adds, not what eight devices would gain.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _timing import compare, report
from jax.sharding import NamedSharding, PartitionSpec

import outlay

outlay.simulate(8)

WIDTH, DEPTH, BATCH = 1024, 4, 64
optimizer = optax.adam(1e-3)


def init(key):
    keys = jax.random.split(key, DEPTH)
    params = [{"kernel": jax.random.normal(k, (WIDTH, WIDTH)) / 32, "bias": jnp.zeros(WIDTH)} for k in keys]
    return {"params": params, "opt_state": optimizer.init(params)}


def loss(params, batch):
    x = batch["x"]
    for layer in params:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return jnp.mean((x - batch["y"]) ** 2)


def step(state, batch):
    value, gradients = jax.value_and_grad(loss)(state["params"], batch)
    updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": value}


mesh = outlay.mesh(data=8)
rows, split, whole = (NamedSharding(mesh, PartitionSpec(*dims)) for dims in (("data", None), ("data",), ()))
generator = np.random.default_rng(0)
batch = {name: generator.standard_normal((BATCH, WIDTH), dtype=np.float32) for name in "xy"}
batch = jax.device_put(batch, rows)

program = outlay.program(step, init, batch, layout=outlay.fsdp(min_size=16) + outlay.data_parallel(), mesh=mesh)

# The same by hand: every kernel and its moments split by rows, every bias split, the counter whole.
placed_params = [{"kernel": rows, "bias": split} for _ in range(DEPTH)]
placed_adam = optax.ScaleByAdamState(count=whole, mu=placed_params, nu=placed_params)
placement = {"params": placed_params, "opt_state": (placed_adam, optax.EmptyState())}
hand = jax.jit(step, in_shardings=(placement, rows), out_shardings=(placement, None), donate_argnums=0)
state = jax.jit(init, out_shardings=placement)(jax.random.key(0))
hand_text = hand.lower(state, batch).compile().as_text()

states = {"outlay": program.init(jax.random.key(0)), "hand": state}


def call_outlay():
    states["outlay"], outputs = program(states["outlay"], batch)
    outputs["loss"].block_until_ready()


def call_by_hand():
    states["hand"], outputs = hand(states["hand"], batch)
    outputs["loss"].block_until_ready()


def without_metadata(text):
    """Return the program itself: source locations differ by the frames above the step."""
    body = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "", text, flags=re.MULTILINE)
    return re.sub(r", metadata=\{[^}]*\}", "", body)


call_outlay(), call_by_hand()
same = without_metadata(program.compiled.as_text()) == without_metadata(hand_text)
tested, reference, ratio = compare(call_outlay, call_by_hand, rounds=12, calls=5)
report("FSDP step of a 4 x 1024 MLP on 8 simulated devices", tested, reference, ratio, bar=1.03)
print(f"the optimized HLO is {'the same' if same else 'DIFFERENT'}")
