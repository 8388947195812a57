"""Train low-rank adapters for a published model: its weights come from a file, frozen and split over eight devices.

The file has PyTorch's names and order of dims, as models from Hugging Face do.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file

import outlay

RANK = 4
SIZES = {"hidden": (16, 64), "out": (64, 4)}

# Only the adapters have optimizer moments; updates of the base are set to zero.
optimizer = optax.multi_transform(
    {"adapters": optax.adam(3e-2), "base": optax.set_to_zero()},
    lambda params: {name: jax.tree.map(lambda _, name=name: name, part) for name, part in params.items()},
)

# Where a weight of the file goes: PyTorch's are (outputs, inputs).
NAMES = [
    ("model.*.weight", "params.base.*.kernel", (1, 0)),
    ("model.*.bias", "params.base.*.bias"),
]


def init_params(key):
    """Initialize the base, which a file may fill, and adapters whose product is zero at first."""
    keys = dict(zip(SIZES, jax.random.split(key, len(SIZES)), strict=True))
    return {
        "base": {
            name: {"kernel": jax.random.normal(keys[name], size) / size[0] ** 0.5, "bias": jnp.zeros(size[1])}
            for name, size in SIZES.items()
        },
        "adapters": {
            name: {"down": jax.random.normal(keys[name], (inputs, RANK)) / 4, "up": jnp.zeros((RANK, outputs))}
            for name, (inputs, outputs) in SIZES.items()
        },
    }


def forward(params, x):
    base = jax.lax.stop_gradient(params["base"])  # so that no gradients of it are computed

    def layer(name, x):
        adapter = params["adapters"][name]
        return x @ base[name]["kernel"] + base[name]["bias"] + x @ adapter["down"] @ adapter["up"]

    return layer("out", jnp.tanh(layer("hidden", x)))


def loss(params, batch, keys):
    logits = forward(params, batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses, {"accuracy": logits.argmax(axis=1) == batch["y"]}


def make_examples(num, first=0):
    """Make samples with sixteen random features; the class is the largest of four of them, from `first` on."""
    x = np.random.default_rng(0).normal(size=(num, 16)).astype(np.float32)
    return {"x": x, "y": x[:, first : first + 4].argmax(axis=1).astype(np.int32)}


def recipe():
    """Return the recipe for `outlay run examples/lora.py:recipe --devices 8`; its base is random, it reads no file."""
    examples = make_examples(1024)
    return outlay.Recipe.training(
        "lora",
        init_params=init_params,
        loss=loss,
        optimizer=optimizer,
        train=jax.tree.map(lambda x: x[:768], examples),
        test=jax.tree.map(lambda x: x[768:], examples),
        batch_size=64,
        steps=100,
    )


def write_pretrained(path):
    """Stand in for another program: train and save a model that knows the first four features."""
    params, examples = init_params(jax.random.key(0)), make_examples(512)
    training = optax.adam(1e-2)

    def loss_of(base):
        hidden = jnp.tanh(examples["x"] @ base["hidden"]["kernel"] + base["hidden"]["bias"])
        logits = hidden @ base["out"]["kernel"] + base["out"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"]).mean()

    def step(carry, _):
        base, moments = carry
        updates, moments = training.update(jax.grad(loss_of)(base), moments)
        return (optax.apply_updates(base, updates), moments), None

    (base, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, length=100))(
        (params["base"], training.init(params["base"]))
    )
    weights = {f"model.{name}.weight": np.ascontiguousarray(layer["kernel"].T) for name, layer in base.items()}
    save_file(weights | {f"model.{name}.bias": np.asarray(layer["bias"]) for name, layer in base.items()}, path)


def main(path):
    mesh = outlay.mesh(data=4, model=2)
    # The base is split over all devices, the adapters are small; moments follow the adapters.
    layout = (
        outlay.Layout([("params.adapters.**", outlay.replicate())])
        + outlay.tensor_parallel("model", columns=["params.base.hidden.*"], rows=["params.base.out.kernel"])
        + outlay.fsdp("data", min_size=64)
        + outlay.data_parallel("data")
    )
    data = outlay.TrainData(make_examples(512, first=8), batch_size=64)
    init, step = outlay.init_state(init_params, optimizer), outlay.train_step(loss, optimizer)
    program = outlay.program(step, init, data[0], layout=layout, mesh=mesh)
    print(program.plan)

    state = outlay.train.read_weights(path, program.init(jax.random.key(0)), NAMES)
    for first, text in ((0, "what it was trained on"), (8, "what it is to learn")):
        print(f"{text}: {outlay.evaluate(program, state, make_examples(500, first), loss=loss)}")
    done = outlay.fit(program, data, steps=100, key=None, start=(0, state), progress=False)
    print(f"after 100 steps: {outlay.evaluate(program, done.state, make_examples(500, 8), loss=loss)}")
    return program, done


if __name__ == "__main__":
    outlay.simulate(8)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        write_pretrained(file)
        main(file)
