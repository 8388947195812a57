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
# # Closed loop
#
# In a closed loop a Brain acts on its surroundings and senses what it has done. In this tutorial a small Brain
# balances a pole on a cart and learns how while it does: its synapses change by a rule with three factors, the
# spikes at either end and a reward.
#
# The surroundings are `CartPole-v1` of [Gymnasium](https://gymnasium.farama.org); anything with its `reset` and
# `step` will do.
#
# ## The Brain
#
# The example is `examples/cart_pole.py`. What the cart senses, four numbers, excites cells that each prefer a
# value. Two populations read all cells, and the one that spikes more pushes the cart its way:

# %%
import pathlib
import sys

here = pathlib.Path.cwd()
sys.path.insert(0, next(str(folder / "examples") for folder in (here, *here.parents) if (folder / "examples").is_dir()))

import cart_pole
import numpy as np

import outlay

outlay.simulate(1)  # one device will do

brain = cart_pole.cart_pole_brain()
print(brain.inspect())

# %% [markdown]
# ## What goes in and out
#
# `encode` makes the Brain's inputs of an observation; `decode` makes an action of what the Brain returned in the
# 20 steps since. Here they belong together, because the population that pushed hears whether the pole falls more
# slowly since: its three-factor rule changes synapses by `gamma (reward + 0.1)` times what Hebb's rule would, so
# a reward of -0.1 leaves them as they are.

# %%
import inspect

print(inspect.getsource(cart_pole.Senses))

# %% [markdown]
# ## Without learning
#
# With a learning rate of zero the pole soon falls, whatever happens:

# %%
import dataclasses


def with_rate(brain, gamma):
    """The Brain with another learning rate."""
    modules = {
        name: dataclasses.replace(module, learning_rule=dataclasses.replace(module.learning_rule, gamma=gamma))
        if name in ("left", "right")
        else module
        for name, module in brain.modules.items()
    }
    return dataclasses.replace(brain, modules=modules)


fixed = outlay.brain.run_brain(with_rate(brain, 0.0), steps=5_000, inputs=cart_pole.closed_loop())
print(fixed)

# %% [markdown]
# ## With learning
#
# `ClosedLoop` feeds 20 steps of the Brain with one observation, acts, and feeds the next; when the pole has
# fallen, or after 500 actions, a new episode begins, and the Brain keeps what it has learned.

# %%
run = outlay.brain.run_brain(brain, steps=16_000, inputs=cart_pole.closed_loop())
print(run)
print("actions in each episode:", [episode.num_actions for episode in run.episodes])
longest = max(episode.num_actions for episode in run.episodes)
assert longest > 3 * np.mean([episode.num_actions for episode in fixed.episodes])

# %% [markdown]
# What it learned is in the kernels. Each cell prefers one value of one sense; here is how much more each excites
# `right` than `left`, for the angle and for how fast it turns:

# %%
import matplotlib.pyplot as plt

left, right = run.weights["left.synapses.kernel"], run.weights["right.synapses.kernel"]
before, after = ((right[i] - left[i]).reshape(20, 4, 16).mean(0) for i in (0, 1))
figure, both = plt.subplots(1, 2, sharey=True, figsize=(8, 2.8), layout="constrained")
for axes, sense, name in zip(both, (2, 3), ("angle", "turning"), strict=True):
    values = np.linspace(-1, 1, 16) * cart_pole.RANGES[sense]
    axes.plot(values, before[sense], color="#c3c9d4", label="at first")
    axes.plot(values, after[sense], color="#2b6cb0", label="after 16 s")
    axes.set(xlabel=f"{name} that a cell prefers")
    axes.axhline(0, color="#333333", linewidth=0.6)
    axes.legend(frameon=False)

# %% [markdown]
# Where the pole leans to the right, or turns to it, cells now excite `right` more: the cart is pushed under the pole.
#
# ## From the command line
#
# The same file holds a recipe, so the loop runs with progress, a run folder and a report:
#
# ```console
# $ outlay run examples/cart_pole.py:recipe --steps 40000
# ```
#
# ## What a loop costs
#
# The Brain's 20 steps are one call of a compiled program; between two calls Python asks the environment. So a
# step here costs more than in an open loop, where 200 steps are one call and nothing waits for Python.
