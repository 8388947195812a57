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
# # One device to many
#
# A JAX array has a *sharding*: which device holds which part of it. This tutorial puts one small array on one
# device, then on eight, computes with it, and looks at where the results are. Where an array lives never changes
# what it is.

# %%
import outlay

outlay.simulate(8)

# %%
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# %% [markdown]
# ## One device
#
# An array that nobody placed is on the first device, in one block.

# %%
numbers = np.arange(32, dtype=np.float32).reshape(4, 8)
x = jnp.asarray(numbers)
outlay.show(x)

# %% [markdown]
# The cards say how much a device holds, the picture says which part. For code there are the same facts as data:

# %%
assert x.sharding.device_set == {jax.devices()[0]}
assert outlay.show(x).blocks.holders == ((0,),)

# %% [markdown]
# ## Eight devices
#
# To split an array you need two things. A *mesh* gives the devices places along named axes. A *spec* says which
# axis splits which dim of the array. Here the mesh has the axes `x`, of two places, and `y`, of four. The spec
# `P("x", "y")` splits rows over `x` and columns over `y`.

# %%
mesh = outlay.mesh(x=2, y=4)
plan = outlay.Layout([("**", P("x", "y"))]).plan(numbers, mesh)
split = outlay.arrays.put(numbers, plan, mesh)
outlay.show(split)

# %% [markdown]
# Each device holds a block of two rows and two columns. The array is still one array: its shape is the global
# one, and its values are those it had.

# %%
assert outlay.show(split).blocks.by_position == (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
assert split.shape == (4, 8)
assert split.sharding.shard_shape(split.shape) == (2, 2)
np.testing.assert_array_equal(split, numbers)

# %% [markdown]
# The pieces can be read one by one. Each knows its device and its place in the whole:

# %%
for piece in split.addressable_shards[:3]:
    print(f"device {piece.device.id} holds rows {piece.index[0]}, columns {piece.index[1]}")
    print(piece.data)
    np.testing.assert_array_equal(piece.data, numbers[piece.index])

# %% [markdown]
# ## A spec may leave axes out
#
# `P("x")` splits the rows over `x` and does not mention `y`. The four devices along `y` then hold the same rows:
# the array is stored four times. Nothing in its values shows this, so look.

# %%
by_rows = jax.device_put(numbers, NamedSharding(mesh, P("x")))
assert outlay.show(by_rows).blocks.holders == ((0, 1, 2, 3), (4, 5, 6, 7))
outlay.show(by_rows)

# %% [markdown]
# A whole tree of arrays is shown in the same way. Click a row for its picture.

# %%
outlay.show({"one device": x, "blocks": split, "rows": by_rows})

# %% [markdown]
# ## Compute
#
# `jax.jit` reads the sharding of its inputs and compiles for it. An elementwise function needs nothing from
# other devices, so each device computes on its block and the result lies where the input lay.
#
# What travels between devices is in the text of the compiled program. The operations that move data are called
# *collectives*. This counts them:


# %%
def collectives(compiled):
    """How often each collective stands in a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    return dict(Counter(re.findall(rf" ({kinds})(?:-start)?\(", compiled.as_text())))


wave = jax.jit(lambda x: 2 * jnp.sin(x) + 1)
waved = wave(split)

assert waved.sharding.spec == P("x", "y")
assert collectives(wave.lower(split).compile()) == {}
np.testing.assert_allclose(waved, 2 * np.sin(numbers) + 1, rtol=1e-6, atol=1e-6)
outlay.show(waved)

# %% [markdown]
# A sum over rows does need other devices: a column's numbers are on two of them. Each device sums its own two
# rows, then the two devices of a column add their results. That is one *all-reduce*. Afterwards both hold the
# sum.

# %%
column_sums = jax.jit(lambda x: x.sum(axis=0))
sums = column_sums(split)
print(sums)
print(collectives(column_sums.lower(split).compile()))

assert sums.tolist() == [48, 52, 56, 60, 64, 68, 72, 76]
assert collectives(column_sums.lower(split).compile()) == {"all-reduce": 1}
assert tuple(sums.sharding.spec) == ("y",)
assert outlay.show(sums).blocks.holders == ((0, 4), (1, 5), (2, 6), (3, 7))
outlay.show(sums)

# %% [markdown]
# ## Say where the result shall be
#
# Left alone, the compiler kept two copies of each sum. A constraint inside the function asks for another place.
# This one names a mesh of one axis over the same eight devices, so that each holds one sum:

# %%
line = outlay.mesh(all=8)


@jax.jit
def column_sums_spread(x):
    return jax.lax.with_sharding_constraint(x.sum(axis=0), NamedSharding(line, P("all")))


spread = column_sums_spread(split)
assert spread.tolist() == sums.tolist()
assert outlay.show(spread).blocks.holders == ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,))
outlay.show(spread)

# %% [markdown]
# ## A trap: a dim that does not divide
#
# Six rows do not split evenly over the axis `y` of four. JAX refuses to place such an array. In some places it
# does not refuse: inside `jit`, `with_sharding_constraint` on such a dim pads the array, and where the result is
# returned it may come back whole on every device, without a word. A layout refuses it everywhere, with the edits
# to choose from:

# %%
try:
    outlay.Layout([("**", P("y"))]).plan(np.ones((6, 8), np.float32), mesh)
except outlay.errors.LayoutError as error:
    message = str(error)
print(message)
assert "dim 0 of (6, 8) float32 has size 6, which is not divisible by y=4" in message
assert "fix" in message

# %% [markdown]
# ## Next
#
# Here the compiler chose the collectives. [Three ways to shard a computation](three_ways.py) compares that with
# guiding it and with writing them yourself.
