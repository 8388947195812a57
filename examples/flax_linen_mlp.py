"""A Flax Linen model on eight devices; the layout is separate from the model."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import outlay

optimizer = optax.adam(1e-2)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(64, name="hidden")(x))
        return nn.Dense(4, name="out")(x)


def init(key):
    """Initialize the whole training state."""
    params = MLP().init(key, jnp.zeros((1, 16)))["params"]
    return {"params": params, "opt_state": optimizer.init(params)}


def step(state, batch):
    """Take one training step, written for one device."""

    def loss_of(params):
        logits = MLP().apply({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}


def make_batch(num_samples=32):
    """Make samples with sixteen random features; the class is the largest of the first four."""
    x = np.random.default_rng(0).normal(size=(num_samples, 16)).astype(np.float32)
    return {"x": x, "y": x[:, :4].argmax(axis=1).astype(np.int32)}


def main():
    mesh = outlay.mesh(data=4, model=2)
    # The hidden layer is split by its outputs, the next one by its inputs; FSDP takes what is left.
    layout = (
        outlay.tensor_parallel("model", columns=["params.hidden.*"], rows=["params.out.kernel"])
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
