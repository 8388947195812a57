"""A residual classifier for one device: what it computes, its loss and its optimizer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class Block(nn.Module):
    """A residual block of two dense layers."""

    expansion: int
    dropout: float

    @nn.compact
    def __call__(self, x, train):
        width = x.shape[-1]
        hidden = nn.silu(nn.Dense(self.expansion * width, name="up")(nn.LayerNorm(name="norm")(x)))
        hidden = nn.Dropout(self.dropout, deterministic=not train)(hidden)
        return x + nn.Dense(width, name="down")(hidden)


class Classifier(nn.Module):
    """A dense layer, a scan over equal blocks, and a head of ten classes."""

    width: int = 512
    layers: int = 8
    expansion: int = 1
    dropout: float = 0.1
    unroll: int = 1

    @nn.compact
    def __call__(self, x, train):
        scan = nn.scan(
            lambda block, x, _: (block(x, train), None),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.layers,
            unroll=self.unroll,
        )
        x = nn.Dense(self.width, name="input")(x)
        x, _ = scan(Block(self.expansion, self.dropout, name="blocks"), x, None)
        return nn.Dense(10, name="output")(nn.LayerNorm(name="norm")(x))


def training(model):
    """Return what `outlay.train_step` and `outlay.init_state` take: parameters from a key, the loss, the optimizer."""

    def init_params(key):
        return model.init(key, jnp.zeros((1, 784)), train=False)["params"]

    def loss(params, batch, keys):
        def logits_of(inputs, key):  # of one sample, which drops its own units
            return model.apply({"params": params}, inputs, train=True, rngs={"dropout": key})

        logits = jax.vmap(logits_of)(batch["inputs"], keys)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses, {"accuracy": logits.argmax(-1) == batch["labels"]}

    return init_params, loss, optax.adamw(1e-3)
