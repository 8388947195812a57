"""Image classifiers in Flax NNX: dense layers with dropout, and a residual network with BatchNorm."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from outlay.core.constrain import name

STAGES = 3
"""The number of stages; each after the first halves the image and doubles the features."""


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

    definition = _definition(make)

    def init_params(key: jax.Array) -> Any:
        return nnx.state(make(key), nnx.Param)

    def loss(params: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        return _losses(nnx.merge(definition, params)(batch["image"], keys), batch["label"])

    return init_params, loss


def _definition(make: Callable[[jax.Array], nnx.Module]) -> Any:
    """Return the graph definition of the module that a function makes of a key; nothing is allocated."""
    return nnx.graphdef(nnx.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0))))


def _losses(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
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


class Block(nnx.Module):
    """A residual block of two convolutions. Source: He et al. (2016), arXiv:1512.03385, section 3.

    Args:
        inputs: the input features.
        outputs: the output features; if they differ, the image is halved.
        rngs: the source of the initial parameters.
    """

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        stride = 1 if inputs == outputs else 2
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.first = conv(inputs, outputs, (3, 3), strides=stride)
        self.second = conv(outputs, outputs, (3, 3))
        self.first_norm, self.second_norm = (nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs) for _ in range(2))
        self.around = conv(inputs, outputs, (1, 1), strides=stride) if stride > 1 else None

    def __call__(self, x: jax.Array, *, use_averages: bool) -> jax.Array:
        """Map (B, height, width, inputs) to (B, height / stride, width / stride, outputs)."""
        hidden = nnx.relu(self.first_norm(self.first(x), use_running_average=use_averages))
        hidden = self.second_norm(self.second(hidden), use_running_average=use_averages)
        return nnx.relu(hidden + (x if self.around is None else self.around(x)))


class ResNet(nnx.Module):
    """A residual network: a stem, three stages of blocks, global average pooling, and class logits.

    Args:
        channels: the channels of the images.
        num_classes: the number of logits.
        width: the features of the first stage; each later stage doubles them.
        blocks: the number of blocks per stage.
        rngs: the source of the initial parameters.
    """

    def __init__(self, channels: int, num_classes: int, *, width: int, blocks: int, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(channels, width, (3, 3), use_bias=False, rngs=rngs)
        self.stem_norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        widths = [width, *(width * 2**stage for stage in range(STAGES) for _ in range(blocks))]
        pairs = itertools.pairwise(widths)
        self.blocks = nnx.List(Block(inputs, outputs, rngs=rngs) for inputs, outputs in pairs)
        self.head = nnx.Linear(widths[-1], num_classes, rngs=rngs)

    def __call__(self, image: jax.Array, *, use_averages: bool) -> jax.Array:
        """Compute logits (B, classes) of images (B, height, width, channels).

        Args:
            image: float images.
            use_averages: normalise by the running averages instead of the statistics of this batch.
        """
        x = nnx.relu(self.stem_norm(self.stem(image), use_running_average=use_averages))
        for block in self.blocks:
            x = block(x, use_averages=use_averages)
        return self.head(x.mean(axis=(1, 2)))


def resnet_classifier(
    image_shape: Sequence[int], num_classes: int, *, width: int = 16, blocks: int = 1
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """Return a `ResNet` as two pure functions for training with `model_state=True`.

    Batches are dictionaries of `image` (B, height, width, channels), float or uint8 (scaled to 0 to 1), and `label`
    (B,) int.

    Args:
        image_shape: (height, width, channels).
        num_classes: the number of classes.
        width: as for `ResNet`.
        blocks: as for `ResNet`.

    Returns:
        `init(key) -> (params, model_state)`, where the state holds the running averages of the batch statistics, and
        `loss(params, model_state, batch, keys) -> (losses, {"accuracy": ...}, model_state)`, which uses the averages if
        `keys` is None.

    Example:
        >>> init, loss = resnet_classifier((8, 8, 1), 10, width=4)
        >>> params, model_state = jax.eval_shape(init, jax.random.key(0))
        >>> batch = {"image": np.zeros((2, 8, 8, 1), np.uint8), "label": np.array([3, 5])}
        >>> losses, metrics, model_state = jax.eval_shape(loss, params, model_state, batch, None)
        >>> losses.shape, metrics["accuracy"].shape
        ((2,), (2,))
    """

    def make(key: jax.Array) -> ResNet:
        return ResNet(image_shape[-1], num_classes, width=width, blocks=blocks, rngs=nnx.Rngs(key))

    definition = _definition(make)

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, params, averages = nnx.split(make(key), nnx.Param, nnx.BatchStat)
        return params, averages

    def loss(params: Any, averages: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, Any], Any]:
        model = nnx.merge(definition, params, averages, copy=True)  # BatchNorm updates its statistics in place
        logits = model(as_floats(batch["image"]), use_averages=keys is None)
        return *_losses(logits, batch["label"]), nnx.state(model, nnx.BatchStat)

    return init, loss


def as_floats(image: jax.Array) -> jax.Array:
    """Convert images to float32; uint8 is scaled to 0 to 1.

    >>> as_floats(jnp.array([0, 255], jnp.uint8)).tolist()
    [0.0, 1.0]
    """
    exact = jnp.asarray(image, jnp.float32)
    return exact / 255 if jnp.issubdtype(image.dtype, jnp.integer) else exact
