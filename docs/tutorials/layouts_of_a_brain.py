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
# # Layouts of a Brain: copies, neurons, modules
#
# Six devices, one spiking network, three ways to lay it out. A published recipe for this moves the arrays of each
# module to a device of its own, and then cannot run ("Received incompatible devices for jitted computation"); its
# automatic variant keeps six whole copies. Here every layout runs, produces the spikes of one device bit for bit, and
# reports what it brings.

# %%
import os
from importlib.resources import files

os.environ["JAX_PLATFORM_NAME"] = "cpu"  # the older name of JAX_PLATFORMS, which many scripts still set

import outlay

outlay.simulate(6)

# %%
import jax
import numpy as np

assert [device.id for device in jax.devices()] == [0, 1, 2, 3, 4, 5]

# %% [markdown]
# ## The model
#
# `ab_brain` is the example of Spark's tutorial: a drive of four numbers becomes spikes of 512 units, and two
# populations A and B, each of excitatory and inhibitory neurons with plastic synapses, turn them into an action of two
# numbers.

# %%
brain = outlay.brain.read_brain(files("outlay.brain.run") / "ab_brain.toml")
tree = brain.inspect()
tree

# %% [markdown]
# Six modules. Each of the four populations, which Spark calls `ALIFNeuron`, has a soma, delays, synapses and a learning
# rule:

# %%
types = {module.name: module.type for module in tree.modules}
assert types["spiker"] == "TopologicalLinearSpiker"
assert types["integrator"] == "ExponentialIntegrator"

# %%
populations = {module.name: module.components for module in tree.modules if module.type == "Neuron"}
assert list(populations) == ["A_ex", "A_in", "B_ex", "B_in"]
for components in populations.values():
    assert components["soma"] == "AdaptiveLeakySoma"
    assert components["delays"] == "N2NDelays"
    assert components["synapses"] == "LinearSynapses"
    assert components["learning_rule"] == "ZenkeRule"

# %% [markdown]
# ## On one device
#
# A *graph loop* runs many steps in one compiled loop, and a program lays it out. First everything on one device:

# %%
NUM_STEPS = 80
drive = np.sin(np.arange(NUM_STEPS)[:, None] / 60 + np.arange(4)).astype(np.float32)
graph_loop = outlay.graph.GraphLoop(brain.graph, record=[f"{name}:out_spikes" for name in populations])


def program(layout, mesh, mode="auto"):
    return outlay.program(graph_loop, brain.init, {"drive": drive}, layout=layout, mesh=mesh, mode=mode)


def run(made):
    """Return the state after all steps, and everything that spiked."""
    state, results = made(made.init(jax.random.key(0)), {"drive": drive})
    return state, jax.device_get({**results["recorded"], **results["outputs"]})


def assert_same(values, expected):
    """Compare bit for bit."""
    assert set(values) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(values[name], expected[name], err_msg=name)


# %%
whole = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
state, alone = run(program(whole, outlay.mesh("one=1", devices=jax.devices()[:1])))
{name: int(np.abs(spikes).sum()) for name, spikes in alone.items() if name != "action"}

# %%
assert all(np.abs(alone[f"{name}:out_spikes"]).sum() > 0 for name in populations)
assert state["A_ex"]["soma"]["potential"].shape == (256,)
assert state["B_ex"]["synapses"]["kernel"].shape == (256, 832)
assert state["integrator"]["trace"]["rise"].shape == state["integrator"]["trace"]["decay"].shape == (2,)
assert state["cache"]["B_in"]["out_spikes"].shape == (64,)
assert {device.id for leaf in jax.tree.leaves(state) for device in leaf.devices()} == {0}

# %% [markdown]
# A step reads what the modules produced in the step *before*. That is what `cache` holds, and it is why the modules of
# one step do not depend on each other, wherever they run.
#
# ## Copies
#
# A mesh of six devices and no rule that splits anything: every device holds everything and does all the work. It is
# easily mistaken for a distributed model, so the plan says what it is:

# %%
six = outlay.mesh("devices=6")
plan = whole.plan(jax.eval_shape(brain.init, jax.random.key(0)), six)

assert {leaf.device_ids for leaf in plan} == {(0, 1, 2, 3, 4, 5)}
assert {leaf.num_copies for leaf in plan} == {6}
(note,) = plan.notes
assert "this layout gains nothing: every leaf is replicated 6 times" in note
assert "(256, 832) is divisible by 6" in note
print(note)

# %% [markdown]
# ## By neuron
#
# 256 neurons are not divisible by six, but neurons are independent of each other within a step: each device computes 43
# of them, the last one some that do nothing. The kernels are split by the neuron that reads, and the spikes of all are
# exchanged in one all-gather a step, two bits for each neuron.

# %%
by_neuron = program(outlay.layout.by_rows("neurons"), outlay.mesh(neurons=6), mode="manual")
kernel = by_neuron.plan["B_ex.synapses.kernel"]
print(kernel.local_shape, "of", kernel.shape, "on each device:", kernel.reason)
assert kernel.local_shape == (43, 832)

# %%
_, spikes = run(by_neuron)
assert_same(spikes, alone)

# %% [markdown]
# ## By module
#
# One module, one device. The layout names the modules, and what others read of a module goes with it:

# %%
layout = outlay.by_module({"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5})
placed = program(layout, six, mode="placed")
state, spikes = run(placed)

# %% [markdown]
# It runs as six programs that wait only for the spikes that they read, and the result is that of one device:

# %%
assert_same(spikes, alone)


# %%
def device(leaf):
    return [device.id for device in leaf.devices()]


assert device(state["A_ex"]["soma"]["potential"]) == [2]
assert device(state["B_ex"]["synapses"]["kernel"]) == [4]
assert device(state["integrator"]["trace"]["rise"]) == [1]

# %% [markdown]
# Every leaf by its path, with its device. The cache is a part of the state like any other: each output lives with the
# module that produces it.

# %%
shown = outlay.show(placed.plan)
owners = {leaf.path: leaf.device_ids for leaf in placed.plan.state}
assert owners["cache.A_ex.out_spikes"] == (2,)
assert owners["cache.B_in.out_spikes"] == (5,)
text = str(shown)
assert all(path in text for path in owners)
shown

# %% [markdown]
# A population may also have several devices: `"A_ex": [2, 3]` splits its neurons over two.
#
# ## What is it worth?
#
# `outlay.explain` compiles each module, runs nothing, and reports the cost of each placed module, the traffic between
# devices, and the best possible speedup:

# %%
explained = outlay.explain(placed)
parts = explained.by_parts
sent = {(f"{one.part}:{one.port}", one.origin, one.target): one.num_bytes for one in parts.sent}
assert len(sent) == 8
assert sent["A_ex:out_spikes", (2,), (3,)] == 256
assert parts.bytes_per_step == 2 * 512 + 4 * 256 + 2 * 64
explained

# %% [markdown]
# That is the total work over the largest part: about two for equal A and B, whatever the number of devices. On
# simulated devices, which share the cores of this machine, the speedup is even less.

# %%
assert 2 < parts.best_gain < 2.5
assert parts.work_by_device[4] > 10 * parts.work_by_device[0]
cached = {one.path: one for one in parts.cached}
assert cached["cache.spiker.spikes"].sent_to == (2, 4)

# %% [markdown]
# An estimate ranks, a measurement decides. `outlay.analysis.measure_parts` runs each module alone, with the spikes of a
# real run:

# %%
times = outlay.analysis.measure_parts(graph_loop, brain.init, {"drive": drive[:10]}, num_rounds=3)
print(times)

# %% [markdown]
# The published recipe claims that the modules take similar times, so that six devices would be six times as fast. They
# do not: `A_ex` and `B_ex` take many times as long as the spiker and the integrator, and all devices wait for the
# slowest part.

# %%
assert set(times.seconds) == set(types)
assert times.best_gain == sum(times.seconds.values()) / times.seconds[times.largest]

# %% [markdown]
# On the command line, `outlay choose` asks the same questions for any number of devices up to the target's, tries the
# best placement of each, and says so when one device is best:
#
#     outlay choose ab_brain --target cpu:6
#     outlay run ab_brain --layout chosen.toml --mode placed
#
# The same programs from there: `outlay show ab_brain --devices 6 --layout by-module`, `outlay explain ab_brain
# --devices 6 --mode placed`, `outlay verify ab_brain --devices 6 --mode placed`.
