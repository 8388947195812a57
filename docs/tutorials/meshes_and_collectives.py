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
# # Meshes and collectives
#
# Code written by hand for many devices needs two things: names for the devices' places, and ways to exchange.
# The first is the mesh, the second are the collectives. This tutorial goes through both, and ends with a
# normalisation that looks right, runs, and is wrong.

# %%
import outlay

outlay.simulate(8)

# %%
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

# %% [markdown]
# ## A mesh of one axis
#
# Eight devices in a row, along the axis `i`. An array of eight numbers gives one to each.

# %%
line = outlay.mesh(i=8)
eight = np.arange(8, dtype=np.float32)
plan = outlay.Layout([("**", P("i"))]).plan(eight, line)
placed = outlay.arrays.put(eight, plan, line)
assert outlay.show(placed).blocks.holders == ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,))
outlay.show(placed)

# %% [markdown]
# An elementwise function leaves the pieces where they are:

# %%
y = jax.jit(jnp.tanh)(placed)
print(y)

np.testing.assert_allclose(
    y, [0, 0.7615942, 0.9640276, 0.9950547, 0.9993292, 0.99990916, 0.9999876, 0.99999833], rtol=1e-6
)
assert outlay.show(y).blocks.holders == outlay.show(placed).blocks.holders

# %% [markdown]
# ## A mesh of two axes
#
# The same devices as a table of four rows and two columns:

# %%
mesh = outlay.mesh(i=4, j=2)
ids = [[device.id for device in row] for row in mesh.devices]
print(np.array(ids))
assert ids == [[0, 1], [2, 3], [4, 5], [6, 7]]

# %% [markdown]
# A dense layer has a batch of inputs, a kernel, and a bias. Inputs are split by samples over `i`, kernel and bias by
# outputs over `j`:

# %%
rng = np.random.default_rng(0)
arrays = {
    "x": rng.normal(size=(192, 64)).astype(np.float32),
    "w": rng.normal(size=(64, 128)).astype(np.float32),
    "b": rng.normal(size=128).astype(np.float32),
}
dense = arrays["x"] @ arrays["w"] + arrays["b"]

layout = outlay.Layout([("x", P("i", None)), ("w", P(None, "j")), ("b", P("j"))])
placed = outlay.arrays.put(arrays, layout.plan(arrays, mesh), mesh)
assert outlay.show(placed["x"]).blocks.holders == ((0, 1), (2, 3), (4, 5), (6, 7))
assert outlay.show(placed["w"]).blocks.holders == ((0, 2, 4, 6), (1, 3, 5, 7))
assert outlay.show(placed["b"]).blocks.holders == ((0, 2, 4, 6), (1, 3, 5, 7))
outlay.show(placed)

# %% [markdown]
# Every device has whole rows of the inputs and whole columns of the kernel: all it needs for its block of the
# product. So nothing is exchanged, and the result is split over both axes.


# %%
def collectives(compiled):
    """How often each collective stands in a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    return dict(Counter(re.findall(rf" ({kinds})(?:-start)?\(", compiled.as_text())))


layer = jax.jit(lambda x, w, b: x @ w + b)
y = layer(**placed)
assert collectives(layer.lower(**placed).compile()) == {}
assert y.shape == (192, 128)
assert outlay.show(y).blocks.by_position == (((0,), (1,)), ((2,), (3,)), ((4,), (5,)), ((6,), (7,)))
np.testing.assert_allclose(y, dense, rtol=1e-4, atol=1e-4)
outlay.show(y)

# %% [markdown]
# Why two axes and not one of eight? Each device holds less, and where something must be exchanged, less travels.
# [Choose a mesh](../guides/choose_a_mesh.md) measures both.
#
# ## Inside: local shapes
#
# `jax.shard_map` runs a function on each device's pieces. The specs say how the arguments are cut. The function sees
# only its pieces, and their shapes are the global ones divided by the axes:

# %%
local_shapes = {}


def layer_by_hand(x, w, b):
    local_shapes.update(x=x.shape, w=w.shape, b=b.shape)
    return x @ w + b


specs = (P("i", None), P(None, "j"), P("j"))
by_hand = jax.jit(jax.shard_map(layer_by_hand, mesh=mesh, in_specs=specs, out_specs=P("i", "j")))
y = by_hand(placed["x"], placed["w"], placed["b"])
print(local_shapes)

assert local_shapes == {"x": (48, 64), "w": (64, 64), "b": (64,)}
assert collectives(by_hand.lower(placed["x"], placed["w"], placed["b"]).compile()) == {}
np.testing.assert_allclose(y, dense, rtol=1e-4, atol=1e-4)

# %% [markdown]
# Arrays that nobody placed are taken too: they are cut by the specs on the way in.

# %%
np.testing.assert_array_equal(by_hand(arrays["x"], arrays["w"], arrays["b"]), y)

# %% [markdown]
# ## Where am I?
#
# A device can ask for its place along each axis:


# %%
def my_place():
    return outlay.collectives.axis_coordinates("i", "j")[None]


places = jax.jit(jax.shard_map(my_place, mesh=mesh, in_specs=(), out_specs=P(("i", "j"))))()
print(places)
assert places.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]

# %% [markdown]
# `out_specs=P(("i", "j"))` splits one dim over both axes, `i` first, so the rows come in the order of the devices.
#
# ## Randomness
#
# A function that runs on eight devices with one key draws the same numbers eight times. For a dropout mask that is a
# mistake, and no error tells. Fold the place along an axis into the key, and the devices along that axis differ.
# Those along the other axis still agree:


# %%
def keys_over_i(key):
    own = jax.random.fold_in(key, jax.lax.axis_index("i"))
    return jax.random.key_data(own)[None]


keys = jax.jit(jax.shard_map(keys_over_i, mesh=mesh, in_specs=P(), out_specs=P("i")))(jax.random.key(0))
print(keys)
assert keys.tolist() == [
    [1797259609, 2579123966],
    [928981903, 3453687069],
    [4146024105, 2718843009],
    [2467461003, 3840466878],
]
assert outlay.show(keys).blocks.holders == ((0, 1), (2, 3), (4, 5), (6, 7))
outlay.show(keys)

# %% [markdown]
# Fold over the axes that split the data, and over no others: devices that hold the same samples must draw the same
# mask. Even then the numbers depend on the mesh. `outlay.train_step` keys every sample by its number instead, and
# draws the same on any mesh.
#
# ## Gather
#
# Inputs are split over `i`, as before, and now the kernel is split over `i` as well, by its rows. To multiply, a
# device needs all of it. `all_gather` collects the pieces along an axis:


# %%
def layer_gathering(x, w_piece, b):
    w = jax.lax.all_gather(w_piece, "i", axis=0, tiled=True)
    local_shapes.update(piece=w_piece.shape, gathered=w.shape)
    return x @ w + b


# Whole numbers are exact in float32, so the results can be compared bit for bit.
x = rng.integers(-8, 8, (192, 64)).astype(np.float32)
w = rng.integers(-8, 8, (64, 128)).astype(np.float32)
b = rng.integers(-8, 8, 128).astype(np.float32)
specs = (P("i", None), P("i", None), P())
gathering = jax.jit(jax.shard_map(layer_gathering, mesh=mesh, in_specs=specs, out_specs=P("i", None)))
y = gathering(x, w, b)
print(local_shapes["piece"], "->", local_shapes["gathered"], collectives(gathering.lower(x, w, b).compile()))

assert local_shapes["piece"] == (16, 128)
assert local_shapes["gathered"] == (64, 128)
assert collectives(gathering.lower(x, w, b).compile()) == {"all-gather": 1}
np.testing.assert_array_equal(y, x @ w + b)

# %% [markdown]
# `tiled=True` puts the pieces one after the other along the dim. Without it they are stacked along a new one, (4, 16,
# 128). This is what fully sharded training does with every kernel, just before it is used.
#
# ## Sum and scatter
#
# The opposite of a gather: each device has an addend of full size, and each shall keep one piece of the sum. Here each
# place along `i` has one row. The rows are added, and every place keeps one of the four sums:

# %%
rows = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]])


def sum_rows(row):
    return outlay.collectives.sum_scatter(row, "i", dim=1)


sums = jax.jit(jax.shard_map(sum_rows, mesh=mesh, in_specs=P("i"), out_specs=P(None, "i")))(rows)
print(sums)
assert sums.tolist() == [[22, 20, 12, 17]] == [rows.sum(axis=0).tolist()]
outlay.show(sums)

# %% [markdown]
# `outlay.collectives.sum_scatter` is `jax.lax.psum_scatter` with the dim cut as a spec would cut it. Gradients of split
# kernels are summed in this way: no device needs the whole sum.
#
# ## Around the ring
#
# Each device passes its piece to the next, and the last to the first:


# %%
def pass_on(piece):
    return outlay.collectives.ring_shift(piece, "i")


passed = jax.jit(jax.shard_map(pass_on, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(np.arange(4))
print(passed)
assert passed.tolist() == [3, 0, 1, 2]

# %% [markdown]
# `jax.lax.ppermute` underneath takes pairs of source and destination. A device that no pair names as a destination gets
# zeros, and a list with the pairs the other way round turns the other way; neither is an error.
#
# ## A trap: the mean over a split dim
#
# Now normalise each row to mean 0 and standard deviation 1, with the columns split over `j`. Each device has half of
# every row. A version that has been published averages over the devices with `pmean`:

# %%
blocks = P("i", "j")


def published(x):
    mean = jax.lax.pmean(x, "j")
    deviation = jnp.sqrt(jax.lax.pmean((x - mean) ** 2, "j"))
    return (x - mean) / deviation


wrong = jax.jit(jax.shard_map(published, mesh=mesh, in_specs=blocks, out_specs=blocks))(arrays["x"])
print(wrong[:2, :6])
np.testing.assert_allclose(np.abs(wrong), 1, rtol=1e-3)
np.testing.assert_allclose(np.mean(wrong, axis=1), 0, atol=1e-3)
np.testing.assert_allclose(np.std(wrong, axis=1), 1, rtol=1e-3)

# %% [markdown]
# Every entry is +1 or -1. `pmean` averages over *devices*, entry by entry, and leaves the entries of a piece apart. The
# mean of two numbers, `a` from one device and `b` from the other, lies halfway between them. Both are at the same
# distance from it, that distance is the deviation, and the quotient is a sign: + for one, - for the other.
#
# So half of each row is +1 and half is -1. Its mean is 0 and its deviation 1, as they should be. Neither the shape nor
# these two numbers give the mistake away. A comparison with one device does.
#
# The mean of a row takes two sums: over the entries that a device has, and over devices.
# `outlay.collectives.mean_over` does both:


# %%
def normalise(x):
    centred = x - outlay.collectives.mean_over(x, 1, "j")
    return centred / jnp.sqrt(outlay.collectives.mean_over(centred**2, 1, "j"))


normalised = jax.jit(jax.shard_map(normalise, mesh=mesh, in_specs=blocks, out_specs=blocks))(arrays["x"])
x = arrays["x"]
on_one_device = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
print(normalised[:2, :6])

np.testing.assert_allclose(normalised, on_one_device, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(np.mean(normalised, axis=1), 0, atol=1e-6)
np.testing.assert_allclose(np.std(normalised, axis=1), 1, rtol=1e-5)
assert not np.allclose(wrong, on_one_device, atol=0.1)

# %% [markdown]
# In mode `auto` the question does not arise. The function for one device, `x.mean(axis=1)`, means the row, wherever its
# pieces are, and the compiler puts in the sums:


# %%
def normalise_anywhere(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=1, keepdims=True))


split = jax.device_put(x, jax.NamedSharding(mesh, blocks))
automatic = jax.jit(normalise_anywhere)
print(collectives(automatic.lower(split).compile()))
np.testing.assert_allclose(automatic(split), on_one_device, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## Next
#
# [Data parallel and FSDP](data_parallel_and_fsdp.py) puts gathers and sums to work in training, where a layout chooses
# among them.
