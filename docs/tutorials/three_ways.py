# ---
# jupytext:
#   text_representation:
#     extension: .py
#     format_name: percent
# kernelspec:
#   display_name: Python 3
#   language: python
#   name: python3
# ---

# %% [markdown]
# # Three ways to shard a computation
#
# The same layer, laid out over eight devices in three ways:
#
# * *automatic*: the inputs are split, and the compiler works out the rest;
# * *with constraints*: some values inside are told where to be;
# * *by hand*: the function runs on each device's piece and says itself what is exchanged.
#
# The layout is written once. What changes is `mode` and, by hand, the function.

# %%
import outlay

outlay.simulate(8)

# %%
import re
import statistics
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

mesh = outlay.mesh(d=8)


def collectives(compiled):
    """How often each collective stands in a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    return dict(Counter(re.findall(rf" ({kinds})(?:-start)?\(", compiled.as_text())))


# %% [markdown]
# ## By hand: what one device sees
#
# Start with the least familiar way. `jax.shard_map` runs a function once on each device, on that device's piece.
# An elementwise function can be taken as it is:

# %%
x = np.arange(32, dtype=np.float32)
local_shapes = []


def wave(piece):
    local_shapes.append(piece.shape)
    return 2 * jnp.sin(piece) + 1


y = jax.jit(jax.shard_map(wave, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
print(f"outside {x.shape}, inside {local_shapes[0]}")

assert local_shapes[0] == (4,)
np.testing.assert_allclose(y[jnp.array([0, 1, 31])], [1.0, 2.682942, 0.19192469], rtol=1e-5)
np.testing.assert_allclose(y, 2 * np.sin(x) + 1, rtol=1e-5, atol=1e-6)
outlay.show(y)

# %% [markdown]
# `in_specs` cut the input, `out_specs` say how the outputs are put together. The function was written for any
# shape, and inside it sees four numbers.
#
# A sum is different. Each device sums what it has, and eight sums come out:


# %%
def sum_of_piece(piece):
    return piece.sum(keepdims=True)


sums = jax.jit(jax.shard_map(sum_of_piece, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
print(sums)
assert sums.tolist() == [6, 22, 38, 54, 70, 86, 102, 118]

# %% [markdown]
# To get the sum of all, the devices must exchange. `psum` adds a value over a mesh axis and gives every device
# the result:


# %%
def sum_of_all(piece):
    return jax.lax.psum(piece.sum(), "d")


total = jax.jit(jax.shard_map(sum_of_all, mesh=mesh, in_specs=P("d"), out_specs=P()))(x)
print(total)
assert total == 496 == x.sum()
outlay.show(total)

# %% [markdown]
# ## A trap: calling something the same that is not
#
# `out_specs=P()` claims that all devices return the same value. Without the `psum` they do not, and taking one of
# eight sums for the total would be wrong in silence. JAX checks this claim, as long as nobody passes
# `check_vma=False`. In Outlay the check is always on for code you write by hand, and the error says what to write:


# %%
def forgetful_step(state, piece):
    return state, {"total": piece.sum()}


try:
    outlay.program(
        forgetful_step, lambda key: jnp.zeros(()), x, layout=outlay.data_parallel("d"), mesh=mesh, mode="manual"
    )
except outlay.errors.ProgramError as error:
    message = str(error)
print(message)
assert "fix: reduce it before returning: jax.lax.psum(x, axis)" in message

# %% [markdown]
# ## The layer
#
# A dense layer of 32 inputs and 4 outputs, in plain JAX:

# %%
rng = np.random.default_rng(0)
inputs = rng.normal(size=32).astype(np.float32)
params = {
    "kernel": rng.normal(size=(32, 4)).astype(np.float32),
    "bias": rng.normal(size=4).astype(np.float32),
}


def layer(params, x):
    return jax.nn.sigmoid(x @ params["kernel"] + params["bias"])


expected = [0.02138916, 0.8931118, 0.5989196, 0.9774251]
plain = jax.jit(layer)
print(plain(params, inputs))
np.testing.assert_allclose(plain(params, inputs), expected, rtol=1e-5)

# %% [markdown]
# Now over eight devices. The inputs are split, and the kernel by its rows, which meet the inputs in the product.
# Each device then has 4 of the 32 terms of every output. The bias stays whole.

# %%
layout = outlay.Layout(
    [
        ("kernel", P("d", None)),
        ("bias", outlay.replicate()),
        ("batch", P("d")),
    ]
)


def init(key):
    return jax.tree.map(jnp.asarray, params)


# %% [markdown]
# ### Automatic
#
# A program takes `step(state, batch) -> (state, outputs)`. Here the state is the parameters, and the step calls the
# layer as it is:


# %%
def step(params, x):
    return params, layer(params, x)


automatic = outlay.program(step, init, inputs, layout=layout, mesh=mesh)
print(automatic.plan)
print(collectives(automatic.compiled))

# %% [markdown]
# The compiler saw that each device holds a part of the sum, and put in one all-reduce.
#
# ### With constraints
#
# Suppose the arrays arrive whole, and you want the work split all the same. Then the values *inside* the step must
# be placed. `outlay.constrain` gives them a name, and a rule says where that name lives. The step names no mesh,
# and outside a program `constrain` does nothing.


# %%
def named_step(params, x):
    split = outlay.constrain({"x": x, "kernel": params["kernel"]}, "split")
    outputs = jax.nn.sigmoid(split["x"] @ split["kernel"] + params["bias"])
    return params, outputs


arrives_whole = outlay.Layout(
    [
        ("split.x", P("d")),
        ("split.kernel", P("d", None)),
        ("**", outlay.replicate()),
        ("batch", outlay.replicate()),
    ]
)
constrained = outlay.program(named_step, init, inputs, layout=arrives_whole, mesh=mesh)
print(constrained.plan)
print(collectives(constrained.compiled))

# %% [markdown]
# No device needs data from another to take its share of a whole array, so there is again one all-reduce. The price
# is memory: every device holds the whole kernel. The rows of the plan for `kernel` and `split.kernel` show both.
#
# ### By hand
#
# The same layout as in the automatic case, but the step sees pieces, and the sum over devices is written down. Note
# where the `psum` stands: before the bias and the sigmoid. After the bias, the bias would be added eight times.


# %%
def step_by_hand(params, x):
    terms = x @ params["kernel"]
    return params, jax.nn.sigmoid(jax.lax.psum(terms, "d") + params["bias"])


by_hand = outlay.program(step_by_hand, init, inputs, layout=layout, mesh=mesh, mode="manual")
print(collectives(by_hand.compiled))

# %% [markdown]
# ### By hand on one device
#
# The number of devices is nowhere in the step. On a mesh of one, the same code runs. The all-reduce stays in the
# program, but over one device it has nothing to exchange.

# %%
alone = outlay.mesh(d=1, devices=jax.devices()[:1])
by_hand_alone = outlay.program(step_by_hand, init, inputs, layout=layout, mesh=alone, mode="manual")
print(collectives(by_hand_alone.compiled))

# %% [markdown]
# ## Side by side
#
# The five give the same numbers up to rounding: eight devices add in another order than one. Each program has one
# all-reduce, and its output is whole on all its devices.
#
# The times are ratios to the plain layer. **They are not speeds.** The eight devices are simulated: they share one
# processor, and what is measured is the cost of keeping eight of them in step for 128 multiplications. On
# real devices as well, a layer this small is faster on one.

# %%
ways = {
    "automatic": automatic,
    "with constraints": constrained,
    "by hand": by_hand,
    "by hand, one device": by_hand_alone,
}


def median_time(call, num_calls=30):
    times = []
    for _ in range(num_calls):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def median_time_of_program(program, state):
    def call():
        nonlocal state  # a program uses up the state it is given
        state, outputs = program(state, inputs)
        return outputs

    return median_time(call)


time_of_plain = median_time(lambda: plain(params, inputs))
print(f"{'plain':20} {np.asarray(plain(params, inputs))}  {{}}  time 1.0")
for name, program in ways.items():
    state = program.init(jax.random.key(0))
    state, outputs = program(state, inputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    assert outputs.sharding.is_fully_replicated
    assert len(outputs.sharding.device_set) == program.mesh.size
    kinds = collectives(program.compiled)
    assert kinds == {"all-reduce": 1}, name

    ratio = median_time_of_program(program, state) / time_of_plain
    print(f"{name:20} {np.asarray(outputs)}  {kinds}  time {ratio:.1f}")

# %% [markdown]
# ## Which to take
#
# Start with *automatic*: the model stays as it is, and for most models the compiler finds what an expert would write.
# Add *constraints* where a count of collectives or a plan shows that it did not. Write *by hand* where you must
# control what is exchanged and when.
#
# Training steps need no rewriting for that: for a step from `outlay.train_step`, `mode="manual"` supplies the
# hand-written collectives. [Data parallel and FSDP](data_parallel_and_fsdp.py) does so.
#
# Next: [Meshes and collectives](meshes_and_collectives.py), the vocabulary of writing by hand.
