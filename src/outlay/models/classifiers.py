"""An image classifier in Flax NNX: dense layers with dropout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from outlay.core.constrain import name


class Classifier(nnx.Module):
    """A multilayer perceptron that returns class logits.

    Args:
        sizes: features of the input, of each hidden layer, and of the output (the number of classes).
        dropout_rate: the probability of zeroing a hidden activation in training.
        dtype: the compute dtype; parameters are float32.
        rngs: the source of the initial parameters.
    """

    def __init__(
        self, sizes: Sequence[int], *, dropout_rate: float = 0.0, dtype: Any = jnp.float32, rngs: nnx.Rngs
    ) -> None:
        self.dropout_rate = dropout_rate
        self.layers = nnx.List(
            nnx.Linear(inputs, outputs, dtype=dtype, param_dtype=jnp.float32, rngs=rngs)
            for inputs, outputs in itertools.pairwise(sizes)
        )

    def __call__(self, x: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """Compute float32 logits (B, classes) of inputs (B, features); `keys` are B PRNG keys, None in evaluation."""
        *hidden, last = self.layers
        for number, layer in enumerate(hidden):
            x = nnx.silu(name(layer(x), "hidden"))
            layer_keys = None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            x = dropout(x, layer_keys, self.dropout_rate)
        return name(last(x).astype(jnp.float32), "hidden")


def classifier(
    sizes: Sequence[int], *, dropout_rate: float = 0.0, dtype: Any = jnp.float32
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """Return a `Classifier` as two pure functions for training.

    Batches are dictionaries of `image` (B, features) float and `label` (B,) int.

    Args:
        sizes: as for `Classifier`.
        dropout_rate: as for `Classifier`.
        dtype: as for `Classifier`.

    Returns:
        `init_params(key) -> params`, and `loss(params, batch, keys) -> (losses, {"accuracy": ...})` for
        `outlay.train_step`.

    Example:
        >>> init_params, loss = classifier((64, 32, 10))
        >>> batch = {"image": np.zeros((2, 64), np.float32), "label": np.array([3, 5])}
        >>> losses, metrics = jax.eval_shape(loss, jax.eval_shape(init_params, jax.random.key(0)), batch, None)
        >>> losses.shape, metrics["accuracy"].shape
        ((2,), (2,))
    """

    def make(key: jax.Array) -> Classifier:
        return Classifier(sizes, dropout_rate=dropout_rate, dtype=dtype, rngs=nnx.Rngs(key))

    definition = graph_definition(make)

    def init_params(key: jax.Array) -> Any:
        return nnx.state(make(key), nnx.Param)

    def loss(params: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        return class_losses(nnx.merge(definition, params)(batch["image"], keys), batch["label"])

    return init_params, loss


def graph_definition(make: Callable[[jax.Array], nnx.Module]) -> Any:
    """Return the graph definition of the module that a function makes of a key; nothing is allocated."""
    return nnx.graphdef(nnx.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0))))


def class_losses(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the cross-entropy of each sample, and whether its likeliest class is right."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return losses, {"accuracy": jnp.argmax(logits, axis=-1) == label}


def dropout(x: jax.Array, keys: jax.Array | None, rate: float) -> jax.Array:
    """Zero each entry with probability `rate` and scale the rest by 1 / (1 - rate).

    Source: Srivastava et al. (2014), Dropout, JMLR 15.

    Args:
        x: activations (B, …).
        keys: B PRNG keys, or None to leave `x` as it is, in evaluation.
        rate: the probability of zero.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> sorted(set(dropout(jnp.ones((3, 40)), keys, 0.5).ravel().tolist()))
    [0.0, 2.0]
    """
    if keys is None or rate == 0.0:
        return x
    is_active = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, x.shape[1:]))(keys)
    return jnp.where(is_active, x / (1.0 - rate), jnp.zeros((), x.dtype))
