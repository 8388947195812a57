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
# # Write your own module
#
# A module of a Brain is one small class: its fields are its settings, `init` makes its state, and `step` takes
# the state and what arrives at its ports one step further. In this tutorial you write one, use it in a Brain,
# make it usable in files, and see what makes it run on several devices.
#
# ## The class
#
# The neurons of this module fire when enough of their inputs spike within a short time: coincidence detectors.
# The state is a dictionary of arrays. Everything is a pure function; nothing is changed in place, and nothing in
# it knows about devices.

# %%
import outlay

outlay.simulate(4)  # for the end of this tutorial: pretend to have 4 devices

# %%
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain import Brain, Connection, Module, PoissonSpiker, Port, register, sum_rows


@register("coincidence")
@dataclass(frozen=True)
class Coincidence(Module):
    """Neurons that fire when many of their inputs spike together."""

    units: int
    tau: float = field(default=3.0, metadata={"unit": "ms"})
    needed: float = 4.0
    density: float = 0.2

    # Leaves with one row a neuron, of which a device can compute some without the others.
    by_neuron = ("trace", "connected")

    def inputs(self):
        return {"in_spikes": Port("spikes")}

    def outputs(self, shapes):
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key, shapes, *, dt, dtype):
        num_inputs = int(np.prod(shapes["in_spikes"]))
        connected = jax.random.uniform(key, (self.units, num_inputs)) < self.density
        return {"trace": jnp.zeros(connected.shape[0], dtype), "connected": connected}

    def step(self, state, inputs, *, dt):
        spiked = inputs["in_spikes"].reshape(-1) != 0
        count = (state["connected"] & spiked).sum(1)  # whole numbers: the same in any order of adding
        trace = jnp.exp(-dt / self.tau) * state["trace"] + count.astype(state["trace"].dtype)
        fires = trace > self.needed
        return {**state, "trace": jnp.where(fires, 0, trace)}, {"out_spikes": fires.astype(jnp.int8)}

    def problems(self, *, dt):
        return [] if self.tau > 0 else [f"tau is {self.tau:g} ms\na positive time"]


# %% [markdown]
# ## In a Brain
#
# A Brain consists of modules and connections. Shapes are inferred, and one message lists everything that does not fit,
# with the names of both ends:

# %%
brain = Brain(
    {"eye": PoissonSpiker(max_freq=40.0), "detector": Coincidence(units=50)},
    [Connection("inputs:light", "eye:signal"), Connection("eye:spikes", "detector:in_spikes")],
    inputs={"light": (100,)},
    outputs={"seen": "detector:out_spikes"},
)
print(brain.inspect())

# %%
try:
    Brain(
        {"eye": PoissonSpiker(), "detector": Coincidence(units=50, tau=-3.0)},
        [Connection("inputs:light", "eye:signal"), Connection("eye:spike", "detector:in_spikes")],
        inputs={"light": (100,)},
    )
except outlay.errors.BrainError as error:
    print(error)

# %% [markdown]
# ## Check it against the formula
#
# A module is a pure function, so a test is a few lines. Two inputs that spike together make a neuron fire that needs
# more than one, and only if it reads both:

# %%
small = Coincidence(units=2, needed=1.5)
state = {"trace": jnp.zeros(2), "connected": jnp.array([[True, True, False], [False, True, True]])}
state, outputs = small.step(state, {"in_spikes": jnp.array([1, 1, 0], jnp.int8)}, dt=1.0)
assert outputs["out_spikes"].tolist() == [1, 0]
assert state["trace"].tolist() == [0.0, 1.0]

# %% [markdown]
# ## Run it
#
# It detects that all inputs spike more often for a moment:


# %%
def light(step):
    return np.full(100, 0.2 + 0.8 * (400 <= step < 440))


run = outlay.brain.run_brain(brain, steps=1000, inputs={"light": light}, record=["detector:out_spikes"])
spikes = run["detector:out_spikes"].sum(1)
print(f"spikes a step: {spikes[:400].mean():.2f} before, {spikes[400:440].mean():.2f} in the flash")
assert spikes[400:440].mean() > 3 * spikes[:400].mean()
run.figures()["raster"]

# %% [markdown]
# ## On several devices
#
# `by_neuron` names the leaves whose rows belong to single neurons. A module needs no more: under the
# layout `by-neuron` each device computes some of the 50 neurons of the detector, and the spikes are the same, bit
# for bit. Four does not divide 50, so two rows that nobody reads pad the arrays.

# %%
split = outlay.brain.run_brain(
    brain, steps=1000, inputs={"light": light}, record=["detector:out_spikes"], layout="by-neuron"
)
assert np.array_equal(split["detector:out_spikes"], run["detector:out_spikes"])
print(split.state["detector"]["connected"].sharding)

# %% [markdown]
# Two things decide whether that holds for a module of your own, since under `by-neuron` a step sees only the rows of
# its device:
#
# * **Noise is drawn for each neuron, from its number.** `jax.random.normal(key, (units,))` draws other numbers for
#   other sizes, and each device has another. Give every neuron its number as a leaf of the state, fold it into the
#   key, and let each draw for itself.
# * **Sums of floating-point numbers have a fixed order.** XLA chooses the order of `.sum(1)` by the size of the whole
#   array. `sum_rows` adds columns in an order that does not depend on how many rows there are. (Sums of whole numbers,
#   as above, need no such care.)


# %%
@dataclass(frozen=True)
class NoisyRelay(Module):
    """Neurons that fire where a weighted sum of spikes, with noise of its own in each neuron, is above 1."""

    units: int = 10
    by_neuron = ("number", "weights")

    def inputs(self):
        return {"in_spikes": Port("spikes")}

    def outputs(self, shapes):
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key, shapes, *, dt, dtype):
        of_weights, of_noise = jax.random.split(key)
        weights = jax.random.uniform(of_weights, (self.units, int(np.prod(shapes["in_spikes"]))), dtype)
        number = jnp.arange(self.units, dtype=jnp.uint32)
        return {"weights": weights, "number": number, "noise": jax.random.key_data(of_noise), "step": jnp.uint32(0)}

    def step(self, state, inputs, *, dt):
        spiked = (inputs["in_spikes"].reshape(-1) != 0).astype(state["weights"].dtype)
        total = sum_rows(lambda columns: state["weights"][:, columns] * spiked[columns], len(spiked))
        now = jax.random.fold_in(jax.random.wrap_key_data(state["noise"]), state["step"])
        noise = jax.vmap(lambda number: jax.random.normal(jax.random.fold_in(now, number)))(state["number"])
        return {**state, "step": state["step"] + 1}, {"out_spikes": (total + noise > 1).astype(jnp.int8)}


noisy = Brain(
    {"eye": PoissonSpiker(max_freq=40.0), "relay": NoisyRelay(units=50)},
    [Connection("inputs:light", "eye:signal"), Connection("eye:spikes", "relay:in_spikes")],
    inputs={"light": (100,)},
)
on_one, on_four = (
    outlay.brain.run_brain(noisy, steps=200, inputs={"light": 0.5}, record=["relay:out_spikes"], layout=layout)
    for layout in (None, "by-neuron")
)
assert on_one["relay:out_spikes"].any()
assert np.array_equal(on_one["relay:out_spikes"], on_four["relay:out_spikes"])

# %% [markdown]
# Under `by-module` each module runs on a device of its own:

# %%
placed = outlay.brain.run_brain(
    brain, steps=1000, inputs={"light": light}, record=["detector:out_spikes"], layout="by-module"
)
assert np.array_equal(placed["detector:out_spikes"], run["detector:out_spikes"])
{name: leaf.devices() for name, leaf in placed.state["detector"].items()}

# %% [markdown]
# ## In files
#
# `@register("coincidence")` has given the class a name, so a file can say `type = "coincidence"`, with the fields
# as settings and with units: `tau = "3 ms"`. The line `imports = ["my_modules.py"]` at the top of the file names
# the Python file that the class is in. Python in somebody's file can do anything, so it is run only where you say that
# you trust it: `outlay run FILE --trust`, or `outlay.brain.read_brain(file, trust=True)`.
