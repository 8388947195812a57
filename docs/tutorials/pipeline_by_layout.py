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
# # A pipeline by layout
#
# The notebook [Pipeline Parallelism][notebook] builds GPipe by hand: layers stacked over a mesh axis, a loop over
# ticks with a `ppermute` in it, first and last layers that are masked on all stages but one, keys folded by device,
# and a loss that counts on the last stage only. Here the same classifier is written for one device, and one rule of a
# layout makes it a pipeline.
#
# [notebook]: https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/pipeline_parallel_simple.html

# %%
import outlay

outlay.simulate(8)

# %%
import deep_classifier
import jax
import numpy as np
from samples import samples

# %% [markdown]
# ## The model, for one device
#
# Eight residual blocks of width 512, by `nn.scan`, with dropout. The file knows no mesh, no axis and no Outlay:
#
# ```{literalinclude} programs/deep_classifier.py
# :language: python
# ```
#
# The loss gets a key for each sample, so that a sample drops the same units wherever it is computed. The batch is
# that of the notebook, 128 random inputs with random labels, drawn with the random numbers that JAX had at that time.

# %%


def training(model):
    """Return the train step and the state at the start of a model."""
    init_params, loss, optimizer = deep_classifier.training(model)
    return outlay.train_step(loss, optimizer), outlay.init_state(init_params, optimizer)


step, init = training(deep_classifier.Classifier())
batch = jax.tree.map(np.asarray, samples())


def train(init, step, key, num_steps=17):
    """Return the loss of the last step; the first sixteen have learned before it."""
    state = init(jax.random.key(key))
    for _ in range(num_steps):
        state, metrics = step(state, batch)
    return float(metrics["loss"])


# %% [markdown]
# On one device, with plain `jax.jit`, from eight keys:

# %%
init_alone, step_alone = jax.jit(init), jax.jit(step)
losses = [train(init_alone, step_alone, key) for key in range(8)]
print("loss on one device:", *(f"{each:.6f}" for each in losses))

# %% [markdown]
# ## One rule
#
# Four stages hold two blocks each, and the batch goes through them in eight microbatches. What comes before and after
# the blocks is computed as usual, on all devices.

# %%
blocks = outlay.layout.pipeline("stage", microbatches=8)
layout = outlay.Layout([("params.blocks.**", blocks)]) + outlay.data_parallel()
mesh = outlay.mesh(data=2, stage=4)
program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
print(program.pipelines.partition(";")[0])
kernel = program.plan["params.blocks.up.kernel"]
print(kernel.path, kernel.shape, "here", kernel.local_shape)

# %% [markdown]
# Trained from the first of these keys, it ends with the loss of one device:

# %%
laid_out = train(program.init, program, 0)
print(f"loss as a pipeline {laid_out:.6f}, on one device {losses[0]:.6f}")
np.testing.assert_allclose(laid_out, losses[0], rtol=1e-4)

# %% [markdown]
# `outlay.verify` compares every array of a step, gradients included, also in float64. It gets blocks of width 64 under
# the same layout, since that takes its time:

# %%
small = training(deep_classifier.Classifier(width=64))
verified = outlay.verify(outlay.program(*small, batch, layout=layout, mesh=mesh), batches=[batch], steps=1)
print("verdict:", verified.verdict)
verified.raise_if_different()

# %% [markdown]
# ## The notebook's figures
#
# It prints 5,842,984 parameters. Those are these, and the first and the last layers of three more stages, which exist
# there and are masked: zeros that are never used.

# %%
params = jax.eval_shape(init, jax.random.key(0)).params
sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in params.items()}
num_params, masked = sum(sizes.values()), 3 * (sum(sizes.values()) - sizes["blocks"])
print(f"{num_params:,} parameters, and {masked:,} masked: {num_params + masked:,}")
assert num_params + masked == 5_842_984

# %% [markdown]
# It ends with a loss of 0.000185. Model, data, optimizer and number of steps are equal here, random numbers are not:
# there a key is folded by device for initial values and by device and tick for dropout, so that another mesh trains
# another model; here numbers belong to a parameter or a sample. So the recorded loss cannot come out digit by digit.
# It lies among those of other keys:

# %%
print(f"recorded 0.000185, here {min(losses):.6f} to {max(losses):.6f}")
assert min(losses) < 0.000185 < max(losses)

# %% [markdown]
# The next page lets microbatches [go round twice](looping_pipeline.py). When a pipeline pays, and what is refused, is
# in [pipelines](../guides/pipelines.md).
