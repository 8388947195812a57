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
# # Three axes at once
#
# *3D parallelism* splits samples over one mesh axis, layers over a second and the layers themselves over a third. The
# notebook [3D Parallelism][notebook] combines its modules for it: the pipeline wraps a transformer that knows the
# tensor axis, each part is wrapped once more to gather parameters, and the last layer changes what is split by hand,
# since logits would be the largest array. Here the model is the file of [the page before](transformer_by_layout.py),
# unchanged, and each of these is a rule.
#
# [notebook]: https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/3d_parallelism.html

# %%
import outlay

outlay.simulate(8)

# %%
import jax
import numpy as np
import transformer
from jax.sharding import PartitionSpec as P

# %% [markdown]
# ## On one device
#
# Sequences have eight tokens here, and there are 32; the learning rate is a fifth of that of the page before. The
# notebook trains for 22 steps:

# %%


def training(model):
    """Return the train step and the state at the start of a model."""
    init_params, loss, optimizer = transformer.training(model, length=8, peak=2e-4)
    return outlay.train_step(loss, optimizer), outlay.init_state(init_params, optimizer)


step, init = training(transformer.Transformer())
batch = jax.tree.map(np.asarray, transformer.sequences(32, 8))


def train(init, step, key, num_steps):
    """Return the loss of each step."""
    state, losses = init(jax.random.key(key)), []
    for _ in range(num_steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


init_alone, step_alone = jax.jit(init), jax.jit(step)
alone = [train(init_alone, step_alone, key, 22) for key in range(4)]
print("loss on one device:", *(f"{each[-1]:.6f}" for each in alone))

# %% [markdown]
# ## The layout
#
# The pipeline rule comes first and splits the layers; the others split what is left of a kernel, and FSDP what is left
# then. Behind the blocks both `stage` and `model` have nothing to do, so the head uses them as one axis, for tokens:
# `("stage", "model")` in a spec are *joint axes*, four devices here.

# %%
jointly = ("stage", "model")
heads = [(f"params.blocks.attention.{name}.kernel", P(None, None, "model")) for name in ("query", "key", "value")]
rules = [
    ("params.blocks.**", outlay.layout.pipeline("stage", microbatches=8)),
    *heads,
    ("params.blocks.attention.out.kernel", P(None, "model")),
    ("params.head.logits.kernel", P(jointly)),
    ("@attend", P("data", None, "model")),
    ("@Block", P("data", None, "model")),
    ("@Head", P("data", jointly)),
]
layers = outlay.tensor_parallel(
    columns=["params.blocks.feed_forward.up.*", "params.tokens.embedding", "params.positions"],
    rows=["params.blocks.feed_forward.down.kernel"],
)
layout = outlay.Layout(rules) + layers + outlay.fsdp("data", min_size=2**8) + outlay.data_parallel()
mesh = outlay.mesh(data=2, stage=2, model=2)
program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
print(program.pipelines.partition(";")[0])
for leaf in program.plan.state:
    if leaf.path.startswith("params."):
        print(f"{leaf.path:42} {leaf.shape!s:18} {leaf.spec}")

# %% [markdown]
# The kernel of the logits is split as in the notebook: `P(('pipe', 'tensor'), 'data')` there. Trained from the first
# key, for 3 of the 22 steps, since eight simulated devices share the cores of one machine:

# %%
for each, same_step in zip(train(program.init, program, 0, 3), alone[0], strict=False):
    print(f"loss on 8 devices {each:.6f}, on one {same_step:.6f}")
    np.testing.assert_allclose(each, same_step, rtol=0.01)  # sums in bfloat16

# %% [markdown]
# `outlay.verify` compares every array of a step, gradients included, also in float64. It gets a narrower model under
# the same rules, since that takes its time: two blocks of width 64.

# %%
small = training(transformer.Transformer(width=64, layers=2, head_dim=8))
verified = outlay.verify(outlay.program(*small, batch, layout=layout, mesh=mesh), batches=[batch], steps=1)
print("verdict:", verified.verdict)
verified.raise_if_different()

# %% [markdown]
# ## The notebook's figures
#
# It prints 4,784,484 parameters. There each of the two devices of the tensor axis has two scales of its own for the
# norms of queries and of keys, one for each part of the kernel, where one device has one:

# %%
params = jax.eval_shape(init, jax.random.key(0)).params
num_params, copied = sum(leaf.size for leaf in jax.tree.leaves(params)), 3 * 6 * 2 * 32
print(f"{num_params:,} parameters, and {copied:,} more in the notebook: {num_params + copied:,}")
assert num_params + copied == 4_784_484

# %% [markdown]
# As on the page before, that is another model: each part of a kernel gives a part of the sum over features, and the
# notebook normalizes the parts before it adds them. Keys are folded by device there, too. So the recorded loss,
# 1.063429, is not expected digit by digit:

# %%
losses = [each[-1] for each in alone]
print(f"recorded 1.063429, here {min(losses):.6f} to {max(losses):.6f}")
assert abs(np.mean(losses) - 1.063429) < 0.1

# %% [markdown]
# What a step of the model with a billion parameters takes on three axes and on two, and what Outlay prices for it, is
# in [the notebooks' measured steps](../guides/from_the_notebooks.md#measured-steps).
