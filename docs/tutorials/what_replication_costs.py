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
# # What replication costs
#
# An array that no rule splits is *replicated*: every device of the mesh holds a copy. It may look distributed, because
# it is everywhere. But each copy takes memory, and each device that works on a copy repeats the
# work of the others. This tutorial measures both, and shows where Outlay reports it.

# %%
import outlay

outlay.simulate(8)

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

# %% [markdown]
# ## Six devices that do the work of one
#
# Some arrays of a small brain model, on a mesh of six devices, without a rule that splits anything. This has been
# published as a way to distribute a model:

# %%
six = outlay.mesh(all=6, devices=jax.devices()[:6])
brain = {
    "A_ex": {"soma": {"potential": jnp.zeros(256)}},
    "B_ex": {"synapses": {"kernel": jnp.ones((256, 832)) / 832}},
    "B_in": {"output": jnp.zeros(64)},
    "integrator": {"trace": jnp.zeros(2)},
}
whole = outlay.Layout([("**", outlay.replicate())])
plan = whole.plan(brain, six)
print(plan)

assert {leaf.num_copies for leaf in plan} == {6}
assert not any(leaf.is_split for leaf in plan)

# %% [markdown]
# The column `copies` is six for every array, and the note below the table explains what that means. It also looks for
# an alternative, but there is none on this mesh: neither 256 nor 832 is divisible by 6.

# %%
(note,) = plan.notes
assert "this layout gains nothing: every leaf is replicated 6 times" in note
assert "no dim of B_ex.synapses.kernel (256, 832) is divisible by 6" in note

# %% [markdown]
# The arrays themselves show the same:

# %%
placed = outlay.arrays.put(brain, plan, six)
kernel = placed["B_ex"]["synapses"]["kernel"]
assert kernel.sharding.is_fully_replicated
assert outlay.show(kernel).blocks.holders == ((0, 1, 2, 3, 4, 5),)
outlay.show(placed)

# %% [markdown]
# ## Bytes
#
# Counted once, the arrays take 853 kB. Six copies take six times that, and the largest model that fits is no larger
# than on one device:

# %%
once, per_device = plan.bytes_total, plan.bytes_per_device[0]
print(f"counted once {once:,} bytes, a device {per_device:,}, all six {sum(plan.bytes_per_device.values()):,}")
assert once == per_device == 4 * (256 + 256 * 832 + 64 + 2)
assert plan.replication == 6

# %% [markdown]
# ## Repeated work
#
# The compiler counts the operations that one device does. For a product of the kernel with a vector, compare one
# device, six devices with copies, and eight devices that split the rows of the kernel:

# %%
spikes = jnp.ones(832)
eight = outlay.mesh(all=8)
split = outlay.Layout([("B_ex.synapses.kernel", P("all", None))]) + whole


def currents(brain, spikes):
    return brain["B_ex"]["synapses"]["kernel"] @ spikes


def operations_of_a_device(layout, mesh):
    arrays = outlay.arrays.put(jax.tree.map(np.asarray, brain), layout.plan(brain, mesh), mesh)
    everywhere = jax.device_put(np.asarray(spikes), jax.NamedSharding(mesh, P()))
    return jax.jit(currents).lower(arrays, everywhere).compile().cost_analysis()["flops"]


one = outlay.mesh(all=1, devices=jax.devices()[:1])
work = {
    "one device": operations_of_a_device(whole, one),
    "six copies": operations_of_a_device(whole, six),
    "split in eight": operations_of_a_device(split, eight),
}
for name, operations in work.items():
    print(f"{name:15} {operations:>9,.0f} operations a device")

assert work["six copies"] == work["one device"]
assert work["split in eight"] * 8 == work["one device"]

# %% [markdown]
# Six devices with copies are no faster than one: each does all of the work. Split in eight, each does an eighth.
#
# ## What to do instead
#
# **Take a mesh that divides.** 256 rows split over two, four or eight devices:

# %%
plan_of_eight = split.plan(brain, eight)
print(plan_of_eight)
assert plan_of_eight["B_ex.synapses.kernel"].local_shape == (32, 832)
assert plan_of_eight.notes == ()

# %% [markdown]
# **Give each module its own device.** Each array is then stored once. Modules that need each other's results still
# wait for each other, so this saves memory rather than time. Ordinary programs cannot run this way, but graphs of parts
# can: see [Parts on devices of their own](../concepts/placed.md).

# %%
by_module = outlay.by_module({"A_ex": 2, "B_ex": 4, "B_in": 5, "integrator": 1})
plan_by_module = by_module.plan(brain, six)
assert {leaf.num_copies for leaf in plan_by_module} == {1}
assert plan_by_module["B_ex.synapses.kernel"].device_ids == (4,)
outlay.show(plan_by_module)

# %% [markdown]
# **Or use one device.** For 853 kB that is a good answer.
#
# ## Where replication is right
#
# Data parallel training keeps the model whole on every device. Devices do not repeat work, because each has other
# samples. But every device stores all parameters and updates all of them. Compare this with
# splitting the optimizer's state (ZeRO-1), and the parameters as well (FSDP):

# %%
optimizer = optax.adam(1e-3)


def init_params(key):
    return {"kernel": jax.random.normal(key, (1024, 1024)), "bias": jnp.zeros(1024)}


def loss(params, batch, keys):
    return jnp.mean((batch["x"] @ params["kernel"] + params["bias"] - batch["x"]) ** 2, axis=1), {}


batch = {"x": np.ones((64, 1024), np.float32)}
init = outlay.init_state(init_params, optimizer)
step = outlay.train_step(loss, optimizer)
layouts = {
    "dp": outlay.data_parallel(),
    "zero1": outlay.zero1(min_size=2**10) + outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=2**10) + outlay.data_parallel(),
}
mesh = outlay.mesh(data=8)
plans = {name: outlay.program(step, init, batch, layout=layout, mesh=mesh).plan for name, layout in layouts.items()}
for name, plan in plans.items():
    state = sum(leaf.bytes_per_device for leaf in plan.state)
    print(f"{name:6} {state:>11,} bytes of state a device, replication {plan.replication:.2f}")

assert plans["dp"].replication == 8
assert plans["fsdp"].replication < 1.01

# %% [markdown]
# *Replication* is the bytes on all devices over the bytes counted once: 8 where all is copied, 1 where nothing is.
# `diff` shows the effect of a change of layout, leaf by leaf:

# %%
print(plans["dp"].diff(plans["fsdp"]))

# %% [markdown]
# ## An axis that does nothing
#
# On a mesh of two axes, a layout that names only one of them copies along the other. All eight devices are busy, and
# half of them repeat what the others do. The plan notes it:

# %%
idle = outlay.program(step, init, batch, layout=layouts["fsdp"], mesh=outlay.mesh(data=4, model=2)).plan
print(*idle.notes, sep="\n")
assert "axis 'model' splits nothing: its 2 devices hold the same arrays and repeat the same work" in idle.notes
assert 1.99 < idle.replication < 2.01

# %% [markdown]
# ## Next
#
# * [Choose a mesh](../guides/choose_a_mesh.md): which sizes, and what they hold and move.
# * [Write rules](../guides/write_rules.md): patterns, order, and what to do with dims that do not divide.
