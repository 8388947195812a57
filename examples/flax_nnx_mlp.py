"""A Flax NNX model and optimizer on eight devices; both are pytrees, so they go into the state directly."""

import jax
import numpy as np
import optax
from flax import nnx

import outlay


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(16, 64, rngs=rngs)
        self.out = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.hidden(x)))


def init(key):
    """Initialize the whole training state. Under `optimizer`, the moments follow the parameters."""
    model = MLP(nnx.Rngs(key))
    return {"params": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)}


def step(state, batch):
    """Take one training step, written for one device."""
    model, optimizer = state["params"], state["optimizer"]

    def loss_of(model):
        logits = model(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)  # in place, on the step's own copy
    return {"params": model, "optimizer": optimizer}, {"loss": loss}


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
