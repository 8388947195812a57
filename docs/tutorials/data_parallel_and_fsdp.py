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
# # Data parallel and FSDP by layout
#
# A training step, written once for one device, runs here under three layouts: *data parallel* (DP), where every
# device has the whole model; *ZeRO-1*, where the optimizer's state is split; and *fully sharded* (FSDP), where the
# parameters are split as well. To switch between them, you change a name.

# %%
import outlay

outlay.simulate(8)

# %%
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

# %% [markdown]
# ## A classifier
#
# 784 inputs, 64 hidden units, 10 classes. Parameters are float32, the layers compute in `dtype`, and hidden units are
# dropped with probability `rate`. The loss returns one number per sample, and so does each metric; `keys` holds one
# PRNG key per sample.


# %%
def init_params(key):
    first, second = jax.random.split(key)
    normal = jax.nn.initializers.lecun_normal()
    return {
        "input": {"kernel": normal(first, (784, 64)), "bias": jnp.zeros(64)},
        "output": {"kernel": normal(second, (64, 10)), "bias": jnp.zeros(10)},
    }


def drop(hidden, keys, rate):
    is_active = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, hidden.shape[1:]))(keys)
    return jnp.where(is_active, hidden / (1 - rate), 0)


def classifier(dtype, rate):
    def loss(params, batch, keys):
        params, x = jax.tree.map(lambda array: array.astype(dtype), (params, batch["image"]))
        hidden = jax.nn.silu(x @ params["input"]["kernel"] + params["input"]["bias"])
        if rate > 0 and keys is not None:
            hidden = drop(hidden, keys, rate)
        logits = (hidden @ params["output"]["kernel"] + params["output"]["bias"]).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses, {"accuracy": logits.argmax(axis=-1) == batch["label"]}

    return loss


# %% [markdown]
# `outlay.train_step` makes the step from the loss and an optimizer. `accumulate=4` computes the gradients of a batch in
# four microbatches, with a quarter of the memory for activations. The batch is random, so the model
# can only fit it by memorizing it.

# %%
optimizer = optax.adamw(5e-3)
init = outlay.init_state(init_params, optimizer)
step = outlay.train_step(classifier(jnp.bfloat16, rate=0.1), optimizer, accumulate=4)

rng = np.random.default_rng(42)
batch = {
    "image": rng.normal(size=(128, 784)).astype(np.float32),
    "label": rng.integers(0, 10, 128).astype(np.int32),
}

# %% [markdown]
# ## Three layouts
#
# Each splits the batch over the axis `data`. `min_size` is the number of elements below which an array stays whole. It
# is small here because the model is.

# %%
mesh = outlay.mesh(data=8)
layouts = {
    "dp": outlay.data_parallel(),
    "zero1": outlay.zero1(min_size=2**4) + outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=2**4) + outlay.data_parallel(),
}
programs = {name: outlay.program(step, init, batch, layout=layout, mesh=mesh) for name, layout in layouts.items()}

# %% [markdown]
# Nothing is compiled yet, but the location of every leaf is known, and so are the shapes of the metrics:

# %%
_, metric_shapes = jax.eval_shape(step, programs["dp"].state_shapes, programs["dp"].batch_shapes)
print(metric_shapes)
assert {name: metric.shape for name, metric in metric_shapes.items()} == {"loss": (), "accuracy": ()}

# %% [markdown]
# Under DP every leaf of the state is whole on all eight devices:

# %%
assert {leaf.spec for leaf in programs["dp"].plan.state} == {P()}
assert {leaf.num_copies for leaf in programs["dp"].plan.state} == {8}

# %% [markdown]
# Under FSDP each leaf is split along its largest dim that is divisible by eight. Adam's two moments follow the
# parameters. The bias of the output, ten numbers, and the counters stay whole.

# %%
plan = programs["fsdp"].plan
assert {leaf.path: tuple(leaf.spec) for leaf in plan.state if leaf.path.startswith("params.")} == {
    "params.input.bias": ("data",),
    "params.input.kernel": ("data", None),
    "params.output.bias": (),
    "params.output.kernel": ("data", None),
}
assert plan["opt_state.0.mu.input.kernel"].spec == plan["params.input.kernel"].spec
assert plan["opt_state.0.count"].spec == P()
outlay.show(plan)

# %% [markdown]
# ## Bytes a device
#
# The plan knows them before anything is allocated:


# %%
def bytes_a_device(program, root):
    return sum(leaf.bytes_per_device for leaf in program.plan.state if leaf.path.startswith(root))


held = {
    name: (bytes_a_device(program, "params."), bytes_a_device(program, "opt_state."))
    for name, program in programs.items()
}
for name, (params_bytes, adam_bytes) in held.items():
    print(f"{name:6} parameters {params_bytes:>9,}  Adam {adam_bytes:>9,}")

assert held == {
    "dp": (203_560, 407_124),
    "zero1": (203_560, 50_964),
    "fsdp": (25_480, 50_964),
}

# %% [markdown]
# ## Train
#
# Each device initializes its own shards of the state, and no device ever holds a split leaf whole. Global shapes are
# those on one device.

# %%
start = programs["fsdp"].init(jax.random.key(42))
kernel = start.params["input"]["kernel"]
assert kernel.shape == (784, 64)
assert {piece.data.shape for piece in kernel.addressable_shards} == {(98, 64)}
outlay.show(start, "params")

# %% [markdown]
# Sixteen steps on the one batch, under each layout, from the same state. `outlay.arrays.reshard` moves it from
# the FSDP plan to the others.

# %%
losses = {}
for name, program in programs.items():
    state = outlay.arrays.reshard(start, program.plan, mesh)
    for _ in range(16):
        state, metrics = program(state, batch)
    losses[name] = float(metrics["loss"])
    print(f"{name:6} loss {metrics['loss']:.4f}  accuracy {metrics['accuracy']:.2f}")
    assert metrics["accuracy"] == 1
    assert metrics["loss"] < 0.005

np.testing.assert_allclose(list(losses.values()), losses["dp"], rtol=0.02)  # computed in bfloat16: 8 bits

# %% [markdown]
# The dropout masks are the same under every layout as well. The key of a sample is derived from the seed, the step and
# the number of the sample, never from the device.
#
# ## What travels


# %%
def collectives(compiled):
    """How often each collective stands in a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    return dict(Counter(re.findall(rf" ({kinds})(?:-start)?\(", compiled.as_text())))


for name, program in programs.items():
    print(f"{name:6} {collectives(program.compiled)}")

assert set(collectives(programs["dp"].compiled)) == {"all-reduce"}
assert "all-gather" in collectives(programs["fsdp"].compiled)

# %% [markdown]
# DP sums gradients and gathers nothing. ZeRO-1 updates a piece of the parameters on each device and gathers them
# afterwards. FSDP gathers each parameter where it is used.
#
# Under DP and ZeRO-1 a device adds up its own gradients of the four microbatches, and they are summed over devices
# once, after the last. Under FSDP it does not hold whole gradients: each microbatch gathers parameters and sums
# gradients. These are counts in the program's text, so what stands in that loop runs four times a step. The rule
# `("grads.**", outlay.replicate())` has it run once, for the memory of whole parameters and gradients. The compiler
# is not perfect: under FSDP it sums whole gradients on every device and then slices them, where a reduce-scatter
# would move half as much, and it moves a few activations that could stay. Mode `manual` does neither.
#
# ## The same layouts by hand
#
# `mode="manual"` computes gradients with explicit collectives: a split parameter is gathered where it is used, its
# gradient is reduce-scattered, and the gradients of whole parameters are summed in one all-reduce. Neither the loss
# nor the layout changes.
#
# To compare numbers closely, compute in float32, without dropout, for three steps. Adam divides a gradient by its size,
# so it amplifies the rounding of gradients that are nearly zero. A larger `eps` prevents that:

# %%
exact_step = outlay.train_step(classifier(jnp.float32, rate=0), optax.adamw(1e-3, eps=1e-4))


def three_steps(run, state):
    for _ in range(3):
        state, metrics = run(state, batch)
    return state, metrics


alone = outlay.arrays.put(start, outlay.Layout([outlay.layout.on(0)]).plan(start, mesh), mesh)
alone, metrics_alone = three_steps(jax.jit(exact_step), alone)


def largest_difference(state):
    pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params), strict=True)
    return max(np.abs(np.asarray(one) - np.asarray(other)).max() for one, other in pairs)


by_hand = {}
for name, layout in layouts.items():
    program = outlay.program(exact_step, init, batch, layout=layout, mesh=mesh, mode="manual")
    state, metrics = three_steps(program, outlay.arrays.reshard(start, program.plan, mesh))
    apart = largest_difference(state)
    by_hand[name] = collectives(program.compiled)
    print(f"{name:6} loss {metrics['loss']:.6f}  largest difference to one device {apart:.0e}  {by_hand[name]}")
    assert abs(float(metrics["loss"]) - float(metrics_alone["loss"])) < 1e-5
    assert apart < 1e-5

assert by_hand["dp"] == {"all-reduce": 1}
assert by_hand["fsdp"]["reduce-scatter"] == 3

# %% [markdown]
# Under FSDP, each of the three split parameters is gathered once and scattered once. The all-reduce carries the bias
# that stayed whole. ZeRO-1 gathers its parameters after the update.
#
# The automatic programs agree as closely. The project's tests compare every strategy in both modes.
#
# ## What goes wrong elsewhere
#
# ### Gradients times the number of devices
#
# Data parallel training by hand is often written like this: differentiate the loss of one's own samples, then average
# over devices.

# %%
x = batch["image"][:, :4]
y = rng.normal(size=128).astype(np.float32)
w = np.ones(4, np.float32)


def mean_loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def published(w, x, y):
    grad = jax.grad(mean_loss)(w, x, y)
    return jax.lax.pmean(grad, "data")


def over_devices(function):
    specs = (P(), P("data"), P("data"))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P()))


gradient = jax.grad(mean_loss)(w, x, y)
print("ratio to the gradient on one device:", over_devices(published)(w, x, y) / gradient)
np.testing.assert_allclose(over_devices(published)(w, x, y), 8 * gradient, rtol=1e-4)

# %% [markdown]
# Eight times too large. The parameters `w` are the same on every device, so today's `shard_map` returns the gradient of
# the sum over devices: it has already summed, and the mean of eight equal values changes nothing. With
# `check_vma=False` the same code is right, as it was under `pmap`. Adam hides the mistake, because it divides by the
# size of the gradient. Plain gradient descent and clipping do not.
#
# `outlay.verify` finds such mistakes. It runs the program and one device on the same numbers, and compares all
# results:


# %%
def published_step(state, batch):
    grad = published(state["w"], batch["x"], batch["y"])
    return {"w": state["w"] - 0.1 * grad}, {"gradient": grad}


mistaken = outlay.program(
    published_step,
    lambda key: {"w": jnp.ones(4)},
    {"x": x, "y": y},
    layout=outlay.data_parallel(),
    mesh=mesh,
    mode="manual",
)
proof = outlay.verify(mistaken, steps=1)
print(proof)
assert not proof.ok
assert "8.0x" in str(proof)

# %% [markdown]
# Two ways to write it. Average the *loss*, and differentiate that:


# %%
def average_first(w, x, y):
    return jax.grad(lambda w: jax.lax.pmean(mean_loss(w, x, y), "data"))(w)


np.testing.assert_allclose(over_devices(average_first)(w, x, y), gradient, rtol=1e-4)

# %% [markdown]
# Or declare that each device has its own parameters, so that `shard_map` adds no sum:


# %%
def own_parameters(w, x, y):
    own = jax.lax.pcast(w, "data", to="varying")
    return jax.lax.pmean(jax.grad(mean_loss)(own, x, y), "data")


np.testing.assert_allclose(over_devices(own_parameters)(w, x, y), gradient, rtol=1e-4)

# %% [markdown]
# The first is right only while the check is on. Mode `manual` of `outlay.train_step` works in the second way. What it
# averages are sums over samples, divided once by the global number, so devices with fewer samples count for less.
#
# ### Dropped samples
#
# Accumulation is often written as `size = len(batch) // num_microbatches`, followed by a loop. With 128 samples and 3
# microbatches that drops two samples of every batch, always the last two. Outlay uses all samples, or raises an error:

# %%
num_seen = 3 * (128 // 3)
assert num_seen == 126

try:
    outlay.program(
        outlay.train_step(classifier(jnp.float32, rate=0), optimizer, accumulate=3),
        init,
        batch,
        layout=layouts["dp"],
        mesh=mesh,
    )
except outlay.errors.ProgramError as error:
    message = str(error)
print(message)
assert "fix: accumulate=2 or accumulate=4" in message

# %% [markdown]
# The last batch of a data set is often too small to split evenly. Pad it with arbitrary samples and add an entry
# `weight`, 1 for real samples and 0 for padding.
#
# ### A state used twice
#
# A step donates its state: the new state reuses the memory, so that there is never a second copy. Passing the old state
# again is an error that names the leaves:

# %%
state, _ = programs["fsdp"](start, batch)
try:
    programs["fsdp"](start, batch)
except outlay.errors.ProgramError as error:
    message = str(error)
print(message)
assert "gone" in message
assert "params.input.kernel" in message
assert "fix" in message

# %% [markdown]
# ### A dim that does not divide
#
# The output's bias has ten numbers, and ten is not divisible by eight. Above it stayed whole because it is smaller than
# `min_size`. A rule that splits it is an error that lists the alternatives:

# %%
try:
    outlay.program(step, init, batch, layout=outlay.fsdp(min_size=1) + outlay.data_parallel(), mesh=mesh)
except outlay.errors.LayoutError as error:
    message = str(error)
print(message)
assert "params.output.bias" in message
assert "fix" in message

# %% [markdown]
# ## Next
#
# [What replication costs](what_replication_costs.py): the copies that DP keeps, and how to see them.
