"""An Equinox model on eight devices: the module goes into the state directly, with its functions."""

import equinox as eqx
import jax
import numpy as np
import optax

import outlay

optimizer = optax.adam(1e-2)


def make_model(key):
    return eqx.nn.MLP(in_size=16, out_size=4, width_size=64, depth=1, activation=jax.nn.tanh, key=key)


def init(key):
    """Initialize the whole training state; Outlay lays out the arrays of the module."""
    model = make_model(key)
    return {"params": model, "opt_state": optimizer.init(eqx.filter(model, eqx.is_array))}


def step(state, batch):
    """Take one training step, written for one device."""

    def loss_of(model):
        logits = jax.vmap(model)(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = eqx.filter_value_and_grad(loss_of)(state["params"])
    updates, opt_state = optimizer.update(grads, state["opt_state"])
    return {"params": eqx.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}


def make_batch(num_samples=32):
    """Make samples with sixteen random features; the class is the largest of the first four."""
    x = np.random.default_rng(0).normal(size=(num_samples, 16)).astype(np.float32)
    return {"x": x, "y": x[:, :4].argmax(axis=1).astype(np.int32)}


def recipe():
    """For the command line: `outlay run examples/equinox_mlp.py:recipe --devices 4`."""

    def loss(model, batch, keys):
        logits = jax.vmap(model)(batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return losses, {"accuracy": logits.argmax(axis=1) == batch["y"]}

    examples = make_batch(1024)
    return outlay.Recipe.training(
        "equinox_mlp",
        init_params=make_model,
        loss=loss,
        optimizer=optimizer,
        train=jax.tree.map(lambda x: x[:768], examples),
        test=jax.tree.map(lambda x: x[768:], examples),
        batch_size=64,
        steps=100,
    )


def main():
    mesh = outlay.mesh(data=4, model=2)
    # The first layer is split by its outputs, the next one by its inputs; FSDP splits the rest.
    # Equinox weights are (outputs, inputs): the outputs are dim 0.
    layout = (
        outlay.tensor_parallel("model", columns=["params.layers.0.*"], rows=["params.layers.1.weight"], outputs=0)
        + outlay.fsdp("data", min_size=64)
        + outlay.data_parallel("data")
    )
    batch = make_batch()
    program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
    print(program.plan)

    state = program.init(jax.random.key(0))
    for number in range(1, 6):
        state, metrics = program(state, batch)
        print(f"step {number}: loss {metrics['loss']:.4f}")


if __name__ == "__main__":
    outlay.simulate(8)
    main()
