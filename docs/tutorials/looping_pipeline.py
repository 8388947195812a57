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

# %% tags=["remove-cell"]
import sys
from pathlib import Path

sys.path.insert(0, str(Path(globals().get("__file__", "here")).resolve().parent / "programs"))

# %% [markdown]
# # A looping pipeline
#
# In a *looping* pipeline a stage has several groups of layers that do not follow each other, and a microbatch passes
# the stages several times: less time is idle, and activations are sent more often. The notebook [Looping
# Pipelines][notebook] has a second pipeline module for it, and reorders parameters to compare it with the first and
# with one device. In a layout it is a number, `repeats`. The model is the file of [the page
# before](pipeline_by_layout.py), unchanged.
#
# [notebook]: https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/pipeline_parallel_looping.html

# %%
import outlay

outlay.simulate(8)

# %%
import deep_classifier
import jax
import numpy as np
from samples import samples


def training(model):
    """Return the train step and the state at the start of a model."""
    init_params, loss, optimizer = deep_classifier.training(model)
    return outlay.train_step(loss, optimizer), outlay.init_state(init_params, optimizer)


step, init = training(deep_classifier.Classifier())
batch = jax.tree.map(np.asarray, samples())


def train(init, step):
    """Return the loss of each of 17 steps."""
    state, losses = init(jax.random.key(5)), []
    for _ in range(17):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


# %% [markdown]
# ## One device, a pipeline, a looping pipeline
#
# The state is the same in all three: blocks in the order of the model, which checkpoints keep.

# %%
losses = {"one device": train(jax.jit(init), jax.jit(step))}
mesh = outlay.mesh(data=2, stage=4)
for name, repeats in {"pipeline": 1, "looping": 2}.items():
    blocks = outlay.layout.pipeline("stage", microbatches=8, repeats=repeats)
    layout = outlay.Layout([("params.blocks.**", blocks)]) + outlay.data_parallel()
    program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
    losses[name] = train(program.init, program)
    print(f"{name:10} {program.pipelines.partition(';')[0]}")

# %% [markdown]
# The notebook switches dropout off before it compares the three, since each would draw other numbers. Here a sample
# has its own key, so they agree with dropout:

# %%
for name, each in losses.items():
    print(f"{name:10} loss {each[0]:.6f} in the first step, {each[3]:.6f} in the fourth, {each[-1]:.6f} in the last")
    np.testing.assert_allclose(each, losses["one device"], rtol=1e-4)

# %% [markdown]
# `outlay.verify` compares every array of a step. The looping pipeline gets it with blocks of width 64, since that takes
# its time:

# %%
small = training(deep_classifier.Classifier(width=64))
verified = outlay.verify(outlay.program(*small, batch, layout=layout, mesh=mesh), batches=[batch], steps=1)
print("verdict:", verified.verdict)
verified.raise_if_different()

# %% [markdown]
# ## The notebook's figures
#
# Parameters and data are those of the page before. The recorded loss of the looping pipeline is 0.000213, of the
# plain one 0.000185: one model, whose keys are folded by other devices and ticks. Here both have the loss of one
# device, and it depends on the key alone, as [the page before](pipeline_by_layout.py) shows for eight of them, among
# which both recorded losses lie.
#
# On 8 RTX A5000 a step of a larger model took 205 ms as a pipeline of two stages and 190 ms with eight repeats. What
# Outlay prices for these is in [the notebooks' measured steps](../guides/from_the_notebooks.md#measured-steps).
