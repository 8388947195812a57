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
# # Getting started
#
# `pip install 'outlay[train]'` installs what this needs ([all extras](../guides/install.md)).
#
# In this tutorial you train a small classifier on one device in plain JAX, then train the same one on
# eight devices. The model and the training step do not change. You write rules that say where the arrays
# live, look at the resulting plan, run it, and check that it computes the same numbers.
#
# The eight devices are simulated on the CPU, so a laptop will do. The data are handwritten
# digits that come with Outlay.
#
# ## Pretend to have eight devices
#
# JAX fixes the number of devices when it first uses one. So this comes first:

# %%
import outlay

outlay.simulate(8)

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

jax.devices()

# %% [markdown]
# ## Train on one device
#
# Nothing in this part knows about Outlay. The parameters are a dictionary, `init` makes the state from a
# key, and `step` is a pure function from state and batch to new state and metrics.

# %%
optimizer = optax.adam(3e-3)


def init(key):
    up, down = jax.random.split(key)
    params = {
        "up": {"kernel": 0.1 * jax.random.normal(up, (64, 512)), "bias": jnp.zeros(512)},
        "down": {"kernel": 0.1 * jax.random.normal(down, (512, 10)), "bias": jnp.zeros(10)},
    }
    return {"params": params, "opt_state": optimizer.init(params)}


def loss_of(params, batch):
    hidden = jax.nn.relu(batch["image"] @ params["up"]["kernel"] + params["up"]["bias"])
    logits = hidden @ params["down"]["kernel"] + params["down"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, opt_state = optimizer.update(grads, state["opt_state"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt_state": opt_state}, {"loss": loss}


# %% [markdown]
# Batches of 128 digits, as NumPy arrays:

# %%
train, _ = outlay.datasets.digits()
batches = [{name: values[i : i + 128] for name, values in train.items()} for i in range(0, 1408, 128)]
batch = batches[0]

# %% [markdown]
# Eleven steps on one device:

# %%
alone = jax.jit(init)(jax.random.key(0))
run_alone = jax.jit(step)
for each in batches:
    alone, metrics_alone = run_alone(alone, each)
print(f"loss {metrics_alone['loss']:.6f} on {alone['params']['up']['kernel'].devices()}")

# %% [markdown]
# ## Make a mesh
#
# A mesh arranges the devices along named axes. Here the axis `data` has size four and the axis `model`
# size two:

# %%
mesh = outlay.mesh(data=4, model=2)
mesh

# %% [markdown]
# It is a plain `jax.sharding.Mesh`.
#
# ## Write rules
#
# A layout is a list of rules. The simplest one that trains splits the batch over `data` and keeps
# everything else whole:

# %%
layout = outlay.data_parallel("data")
print(layout)

# %% [markdown]
# The left column has patterns over the paths of the arrays. The path of a state array is its keys
# joined by dots: `params.up.kernel`. The paths of the batch begin with `batch`.
#
# ## Make the program and look at its plan
#
# `outlay.program` takes the step, the init function, an example of the batch, the layout and the mesh. It
# traces the step for its shapes and decides where each array lives. Nothing has been compiled or allocated
# yet.

# %%
program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
print(program.plan)

# %% [markdown]
# The parameters and both moments of Adam are on every device: eight copies. The plan also notes that the
# axis `model` does no work.
#
# The same as a picture. Click a row to see which device holds which part of the array:

# %%
outlay.show(program.plan)

# %% [markdown]
# ## Run it
#
# `program.init` initializes the state already sharded, and calling the program runs a step. The program donates the
# state that you pass: the new state reuses its memory.

# %%
state = program.init(jax.random.key(0))
for each in batches:
    state, metrics = program(state, each)
print(f"loss {metrics['loss']:.6f}")

# %% [markdown]
# ## Check the numbers
#
# Eight devices sum in another order than one, so floating-point results may differ in the last digits, but not
# more:


# %%
def largest_difference(state):
    pairs = zip(jax.tree.leaves(state["params"]), jax.tree.leaves(alone["params"]), strict=True)
    return max(np.abs(np.asarray(one) - np.asarray(other)).max() for one, other in pairs)


print(f"largest difference of a parameter: {largest_difference(state):.1e}")
assert largest_difference(state) < 1e-4

# %% [markdown]
# ## Change the layout
#
# Fully sharded data parallelism (FSDP) also splits the parameters and the optimizer state over `data`.
# Compose it with what you have. `min_size` is the number of elements below which an array stays whole; the
# default suits larger models than this one.

# %%
fsdp = outlay.fsdp("data", min_size=512) + outlay.data_parallel("data")
program_fsdp = outlay.program(step, init, batch, layout=fsdp, mesh=mesh)
for leaf in program_fsdp.plan.state:
    print(f"{leaf.path:28} {leaf.spec!s:16} {leaf.reason}")

# %% [markdown]
# Every leaf of the plan carries its reason. `fsdp` chose the dims, the optimizer state follows its
# parameters, and the small bias stays whole. `diff` compares two plans:

# %%
print(program.plan.diff(program_fsdp.plan))

# %% [markdown]
# Tensor parallelism puts the idle axis to work. A rule of your own names the two kernels: the first is
# split by its outputs, the second by its inputs. Rules claim in order, so yours comes first and `fsdp`
# takes a dim that is still free.

# %%
tensor = outlay.Layout(
    [
        ("params.up.kernel", P(None, "model")),
        ("params.up.bias", P("model")),
        ("params.down.kernel", P("model", None)),
    ]
)
fsdp_tp = tensor + fsdp
program_fsdp_tp = outlay.program(step, init, batch, layout=fsdp_tp, mesh=mesh)
outlay.show(program_fsdp_tp.plan)

# %% [markdown]
# The three layouts side by side, with the model untouched:

# %%
for name, each_program in {"dp": program, "fsdp": program_fsdp, "fsdp+tp": program_fsdp_tp}.items():
    state = each_program.init(jax.random.key(0))
    for each in batches:
        state, metrics = each_program(state, each)
    held = max(each_program.plan.bytes_per_device.values())
    apart = largest_difference(state)
    assert apart < 1e-4
    print(f"{name:8} {held:8,} bytes a device   loss {metrics['loss']:.6f}   largest difference {apart:.1e}")

# %% [markdown]
# ## Get a rule wrong
#
# A rule that matches nothing would leave an array where you did not want it. Outlay raises an error that lists it,
# along with every other mistake, and says what to write:

# %%
wrong = outlay.Layout([("params.up.kernal", P(None, "model")), ("params.down.bias", P("model", "data"))]) + fsdp
try:
    outlay.program(step, init, batch, layout=wrong, mesh=mesh)
except outlay.errors.LayoutError as error:
    print(error)

# %% [markdown]
# ## Where to go next
#
# * [One device to many](one_device_to_many.py), the first of five tutorials that build up what happened here.
# * [Lay out your own model](../guides/lay_out_your_own_model.md), in the framework it is written in.
# * [Write rules](../guides/write_rules.md): patterns, order, fallbacks, policies, files.
# * [Choose a mesh](../guides/choose_a_mesh.md).
# * [Mistakes that are caught](../caught_mistakes.md), with the messages.
