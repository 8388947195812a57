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
# # Tensor parallelism by layout
#
# *Tensor parallelism* splits the layers themselves: the first product of a block by its outputs, the second by its
# inputs. The notebook [Tensor Parallelism][notebook] has a dense layer for it that gathers its inputs or scatters its
# outputs, with scaled initializers, since each device sees a part of the kernel. Here the model is written for one
# device, and gather and scatter are one rule.
#
# [notebook]: https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/tensor_parallel_simple.html

# %%
import outlay

outlay.simulate(8)

# %%
import jax
import numpy as np
import wide_classifier
from jax.sharding import PartitionSpec as P
from samples import samples

# %% [markdown]
# ## The model, for one device
#
# Three residual blocks of width 512, computed in bfloat16:
#
# ```{literalinclude} programs/wide_classifier.py
# :language: python
# ```

# %%
init_params, loss, optimizer = wide_classifier.training(wide_classifier.Classifier())
step, init = outlay.train_step(loss, optimizer), outlay.init_state(init_params, optimizer)
batch = jax.tree.map(np.asarray, samples())


def train(init, step, key):
    """Return the loss of the last of 17 steps."""
    state = init(jax.random.key(key))
    for _ in range(17):
        state, metrics = step(state, batch)
    return float(metrics["loss"])


init_alone, step_alone = jax.jit(init), jax.jit(step)
losses = [train(init_alone, step_alone, key) for key in range(8)]
print("loss on one device:", *(f"{each:.6f}" for each in losses))

# %% [markdown]
# ## Two layouts
#
# Both split the kernels of a block in the manner of Megatron-LM, and the batch over `data`. They differ in what a
# block returns: whole on each device of `model`, so that the parts of the second product are summed by an all-reduce;
# or split by features, so that they are scattered, and gathered for the next block. The rule `@Block` says so, by the
# name of the module.

# %%
kernels = outlay.tensor_parallel(
    columns=["params.input.*", "params.blocks.up.*"], rows=["params.blocks.down.kernel", "params.output.kernel"]
)
rest = outlay.Layout([("params.**", outlay.replicate())]) + outlay.data_parallel()
layouts = {
    "all-reduce": kernels + rest,
    "gather and scatter": kernels + outlay.Layout([("@Block", P("data", "model"))]) + rest,
}
mesh = outlay.mesh(data=2, model=4)
programs = {name: outlay.program(step, init, batch, layout=each, mesh=mesh) for name, each in layouts.items()}
for name, program in programs.items():
    laid_out = train(program.init, program, 0)
    moved = sorted({each.kind for each in outlay.explain(program).collectives if "model" in each.axes})
    print(f"{name}: loss {laid_out:.6f}, on one device {losses[0]:.6f}; over model: {', '.join(moved)}")
    np.testing.assert_allclose(laid_out, losses[0], rtol=0.1)  # sums in bfloat16, over 16 steps

# %% [markdown]
# `outlay.verify` replays a step in float64, where all arrays and gradients must agree:

# %%
verified = outlay.verify(programs["all-reduce"], batches=[batch], steps=1)
print("verdict:", verified.verdict)
verified.raise_if_different()

# %% [markdown]
# XLA for CPUs sums and slices where the compilers for GPUs and TPUs scatter.
#
# ## The notebook's figures
#
# The recorded loss is 0.000030. Two things differ there. Each device has biases of its own behind the second product
# and the last, whose sum Adam moves four times as fast, and its own scales of the norms. And initial values come from
# keys that are folded by device. Among those of eight keys here it lies:

# %%
num_params = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init_params, jax.random.key(0))))
copied = 3 * (2 * 3 * 512 + 10)  # scales and biases of three blocks, and the last bias, on three more devices
print(f"{num_params:,} parameters, and {copied:,} more in the notebook")
print(f"recorded 0.000030, here {min(losses):.6f} to {max(losses):.6f}")
assert min(losses) < 0.000030 < max(losses)

# %% [markdown]
# The next page shows which compilers make [rings](rings_by_layout.py) of these gathers and scatters.
