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
# # Rings by layout
#
# Tensor parallelism gathers inputs before a product and scatters sums behind it, and devices wait meanwhile. The
# notebook [Asynchronous Linear Layers][notebook] hides that: inputs go round a *ring* of devices by `ppermute`, and
# while one part travels, the product of the part that is there is computed. The notebook writes a dense layer for it,
# whose kernel is cut by the device that the inputs come from. Here the model is the file of [the page
# before](tensor_parallel_by_layout.py), unchanged, and so is its layout: whether a gather is a ring is a matter of the
# schedule, which a compiler decides.
#
# [notebook]: https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/tensor_parallel_async.html

# %%
import outlay

outlay.simulate(8)

# %%
import re

import jax
import numpy as np
import wide_classifier
from jax.sharding import PartitionSpec as P
from samples import samples

# %% [markdown]
# ## The layout
#
# Kernels are split as before, and what a block returns is split by features, so that each block gathers its input and
# scatters its output:

# %%
kernels = outlay.tensor_parallel(
    columns=["params.input.*", "params.blocks.up.*"], rows=["params.blocks.down.kernel", "params.output.kernel"]
)
rest = outlay.Layout([("params.**", outlay.replicate())]) + outlay.data_parallel()
layout = kernels + outlay.Layout([("@Block", P("data", "model"))]) + rest


def made(model, batch, **how):
    """Return the train step of a model under this layout."""
    init_params, loss, optimizer = wide_classifier.training(model)
    step, init = outlay.train_step(loss, optimizer), outlay.init_state(init_params, optimizer)
    return outlay.program(step, init, batch, layout=layout, **how)


# %% [markdown]
# `outlay.verify` compares every array of a step with one device, gradients included, also in float64. It gets blocks of
# width 64, since that takes its time:

# %%
batch = jax.tree.map(np.asarray, samples())
mesh = outlay.mesh(data=2, model=4)
verified = outlay.verify(made(wide_classifier.Classifier(width=64), batch, mesh=mesh), batches=[batch], steps=1)
print("verdict:", verified.verdict)
verified.raise_if_different()

# %% [markdown]
# ## Rings in the compiled schedule
#
# A ring pays where the product of a part takes as long as its way to the neighbour, so the model gets wider: blocks of
# 2,048 with 8,192 hidden units, for 8,192 samples. No TPU is needed to compile for one:

# %%
shapes = {"inputs": jax.ShapeDtypeStruct((8192, 784), "float32"), "labels": jax.ShapeDtypeStruct((8192,), "int32")}
wider = wide_classifier.Classifier(width=2048, expansion=4)
on_tpus = made(wider, shapes, mesh=outlay.mesh(data=2, model=4, target="tpu-v5e:2x4"))
explained = outlay.explain(on_tpus)
rings = [one for one in explained.collectives if one.kind == "collective-permute"]
assert {one.axes for one in rings} == {("model",)}
for phase in ("forward", "backward"):
    hops = [one for one in rings if one.phase == phase]
    seconds, waited = (sum(getattr(one, what) * one.count for one in hops) for what in ("seconds", "waited"))
    print(f"{phase:8}: {len(hops)} hops in a block, {1 - waited / seconds:.0%} of their time behind products")
    assert waited < seconds

# %% [markdown]
# Nobody asked for hops: the compiler cut gathers and scatters, as the notebook does by hand, and sends both ways round.
# In the compiled schedule, products stand between the start of a hop and its end:

# %%


def products_behind(text):
    """Return how many products stand between the start and the end of each hop, in the order of the schedule."""
    running, ended = {}, {}
    for line in text.splitlines():
        if start := re.search(r"%(\S+) = .* collective-permute-start\(", line):
            running[start[1]] = 0
        elif done := re.search(r" collective-permute-done\(%([^)\s]+)\)", line):
            ended[done[1]] = running.pop(done[1])
        elif "kind=kOutput" in line and "dot_general" in line:
            running = {hop: num + 1 for hop, num in running.items()}
    return ended


behind = products_behind(on_tpus.compiled.as_text())
print("\n".join(f"{hop}: {num} products meanwhile" for hop, num in behind.items()))
assert len(behind) == len(rings)
assert any(behind.values())

# %% [markdown]
# Whether it does so is a matter of size: blocks of 1,024 with as many hidden units were gathered whole, since their
# products are too short to hide a hop.
#
# ## GPUs and CPUs
#
# XLA for GPUs can do the same under the name *windowed einsum*, and has an option for it. The compiler of this version
# of JAX takes the option, and makes no ring of this step. Gathers and scatters stay whole; they are asynchronous, and
# go on behind whatever does not need them:

# %%
windowed = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_threshold_for_windowed_einsum_mib": 0,
    "xla_gpu_multi_streamed_windowed_einsum": True,
}
on_gpus = made(wider, shapes, mesh=outlay.mesh(data=2, model=4, target="h100:1x8"), compiler_options=windowed)
kinds = {one.kind: one.is_async for one in outlay.explain(on_gpus).collectives if "model" in one.axes}
print(kinds)
assert "collective-permute" not in kinds
assert kinds["all-gather"]
assert kinds["reduce-scatter"]

# %% [markdown]
# So on GPUs this layout waits for what the notebook hides. What helps there is fewer exchanges: a block that runs
# attention and the feed-forward layer side by side exchanges once for both, as on [the next
# page](transformer_by_layout.py). XLA for CPUs sums where the others scatter, and waits for each exchange.
#
# ## The notebook's figures
#
# It ends with a loss of 0.000022. In its layer the norm is computed over all devices, and each bias of a block is there
# once, so its model is that of one device, but for the last bias, which is there four times. Initial values come from
# keys that are folded by device, so they are others. Among the losses of four keys here it lies:

# %%
init_params, loss, optimizer = wide_classifier.training(wide_classifier.Classifier())
step = jax.jit(outlay.train_step(loss, optimizer))
init = jax.jit(outlay.init_state(init_params, optimizer))


def train(init, step, key):
    """Return the loss of the last of 17 steps."""
    state = init(jax.random.key(key))
    for _ in range(17):
        state, metrics = step(state, batch)
    return float(metrics["loss"])


losses = [train(init, step, key) for key in range(4)]
print(f"recorded 0.000022, here {min(losses):.6f} to {max(losses):.6f}")
assert min(losses) < 0.000022 < max(losses)
laid_out = made(wide_classifier.Classifier(), batch, mesh=mesh)
loss_of_eight = train(laid_out.init, laid_out, 0)
print(f"loss on 8 devices {loss_of_eight:.6f}, on one {losses[0]:.6f}")
np.testing.assert_allclose(loss_of_eight, losses[0], rtol=0.1)  # sums in bfloat16, over 16 steps
