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
# # A Brain from a file
#
# A *Brain* is a network of modules that run in steps of simulated time, each reading what the others produced in the
# step before. In this tutorial you write one as a file, look at what is in it, run it, record from it by address, and
# draw what it did. Everything happens on one device;
# [the guide on recording](../guides/record_a_brain.md) has the options in full.
#
# ## Write the file
#
# A drive of two numbers becomes spikes; excitatory neurons read them and excite inhibitory ones, which hold them
# back. Values carry their units, and the connections are a list:

# %%
import pathlib
import tempfile

import numpy as np

import outlay

outlay.simulate(1)  # one device will do

folder = pathlib.Path(tempfile.mkdtemp())
file = folder / "balance.toml"
file.write_text(
    """\
dt = "1 ms"

connections = [
  "inputs:drive     -> eye:signal",
  "eye:spikes       -> excitatory:in_spikes",
  "inhibitory:out_spikes -> excitatory:in_spikes",
  "excitatory:out_spikes -> inhibitory:in_spikes",
]

[inputs.drive]
shape = [2]

[modules.eye]
type = "topological_poisson_spiker"
resolution = 32
max_freq = "100 Hz"

[modules.excitatory]
use = "population"
count = 80
synapses = {type = "linear", kernel = {type = "sparse_uniform", scale = 12, density = 0.3}}

[modules.inhibitory]
use = "population"
count = 20
inhibitory_rate = 1
synapses = {type = "linear", kernel = {type = "sparse_uniform", scale = 8, density = 0.3}}

[templates.population]
type = "neuron"
soma = {type = "refractory_leaky", resistance = "1 GOhm/ms", cooldown = "2 ms"}
delays = {type = "n2n", max_delay = "5 ms"}
""",
    encoding="utf-8",
)

# %% [markdown]
# ## Read it and look inside
#
# Reading checks everything: modules, ports, shapes, units and settings. What comes back is a value that never
# changes.

# %%
brain = outlay.brain.read_brain(file)
print(brain.inspect())

# %% [markdown]
# Errors name the line, and one message has all of them: here an unknown setting, and a time in mV.

# %%
wrong = folder / "wrong.toml"
wrong.write_text(file.read_text(encoding="utf-8").replace("5 ms", "5 mV").replace("max_freq", "max_frequency"))
try:
    outlay.brain.read_brain(wrong)
except outlay.errors.BrainError as error:
    print(str(error).replace(f"{folder}/", ""))

# %% [markdown]
# ## Run it
#
# `run_brain` takes as many steps as you like in one compiled loop. An input is an array with one entry a step, a
# number, or a function of the step. Here the drive is an array: one of its numbers goes up while the other one
# goes down.

# %%
ramp = np.linspace(0, 1, 1000)
run = outlay.brain.run_brain(
    brain, steps=1000, inputs={"drive": np.stack([ramp, 1 - ramp], 1)}, record=["*:out_spikes", "**.soma.potential"]
)
run.rates

# %% [markdown]
# What was recorded is there by its address. `MODULE:PORT` is what a module writes, and a dotted path is a part of its
# state; in a pattern `*` stands for one part and `**` for any number.

# %%
run["excitatory:out_spikes"].shape, run["excitatory.soma.potential"].shape, run.times[:4]

# %% [markdown]
# An address that matches nothing is an error, not an empty recording:

# %%
try:
    outlay.brain.run_brain(brain, steps=10, record=["excitatory:spikes"])
except outlay.errors.BrainError as error:
    print(error)

# %% [markdown]
# ## Draw it
#
# A run draws its own pictures:

# %%
figures = run.figures()
figures["raster"]

# %%
figures["potentials"]

# %% [markdown]
# ## Go on, and record less
#
# `state` is what a run ended with, and another one can go on from it. `stride` is the number of steps from one record
# to the next, `windows` are time windows in ms, and `triggers` are events: here what happens around the moments at
# which the inhibitory population is busy.

# %%
later = outlay.brain.run_brain(
    brain,
    steps=2000,
    inputs={"drive": 0.5},
    state=run.state,
    record=["excitatory.soma.potential"],
    triggers=["inhibitory:out_spikes > 100 +- 5"],
)
print(later)
assert 0 < len(later.times) < 2000

# %% [markdown]
# Recording does not change the result. With `to=` the recording is written to disk during the run, as
# [Zarr](https://zarr.dev), and read back lazily:

# %%
outlay.brain.run_brain(
    brain,
    steps=500,
    inputs={"drive": 0.5},
    state=later.state,
    record=["**.kernel"],
    stride=100,
    to=folder / "kernels.zarr",
)
outlay.train.Recording.read(folder / "kernels.zarr")["excitatory.synapses.kernel"].shape

# %% [markdown]
# ## The same from the command line
#
# ```console
# $ outlay run balance.toml --steps 10000 --input drive=0.5 --record '*:out_spikes'
# $ outlay show balance.toml --devices 4 --layout by-module
# ```
#
# The first leaves a run folder with the recording, rates, pictures and a report; the second shows where every array
# would live on four devices.
#
# ## Where to go next
#
# * [Write your own module](write_your_own_module.py).
# * [Closed loop](closed_loop.py): a Brain that acts on its surroundings and learns.
