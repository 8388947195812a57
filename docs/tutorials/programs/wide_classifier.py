"""A residual classifier in bfloat16 for one device: what it computes, its loss and its optimizer."""

import flax.linen as nn
import jax.numpy as jnp
import optax


class Block(nn.Module):
    """A residual block of two dense layers."""

    expansion: int

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        hidden = nn.Dense(self.expansion * width, dtype=x.dtype, name="up")(nn.RMSNorm(dtype=x.dtype, name="norm")(x))
        return x + nn.Dense(width, dtype=x.dtype, name="down")(nn.silu(hidden))


class Classifier(nn.Module):
    """A dense layer, a scan over equal blocks, and a head of ten classes."""

    width: int = 512
    layers: int = 3
    expansion: int = 1

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            lambda block, x, _: (block(x), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.layers,
        )
        x = nn.Dense(self.width, dtype=jnp.bfloat16, name="input")(x)
        x, _ = scan(Block(self.expansion, name="blocks"), x, None)
        return nn.Dense(10, dtype=jnp.bfloat16, name="output")(x).astype(jnp.float32)


def training(model, inputs=784):
    """Return what `outlay.train_step` and `outlay.init_state` take: parameters from a key, the loss, the optimizer."""

    def init_params(key):
        return model.init(key, jnp.zeros((1, inputs)))["params"]

    def loss(params, batch, keys):
        logits = model.apply({"params": params}, batch["inputs"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses, {"accuracy": logits.argmax(-1) == batch["labels"]}

    return init_params, loss, optax.adamw(1e-3)
