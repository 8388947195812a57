"""A residual network with BatchNorm in Flax NNX, for the classes of images."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.classifiers import class_losses, graph_definition

STAGES = 3
"""The number of stages; each after the first halves the image and doubles the features."""


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

    definition = graph_definition(make)

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, params, averages = nnx.split(make(key), nnx.Param, nnx.BatchStat)
        return params, averages

    def loss(params: Any, averages: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, Any], Any]:
        model = nnx.merge(definition, params, averages, copy=True)  # BatchNorm updates its statistics in place
        logits = model(as_floats(batch["image"]), use_averages=keys is None)
        return *class_losses(logits, batch["label"]), nnx.state(model, nnx.BatchStat)

    return init, loss


def as_floats(image: jax.Array) -> jax.Array:
    """Convert images to float32; uint8 is scaled to 0 to 1.

    >>> as_floats(jnp.array([0, 255], jnp.uint8)).tolist()
    [0.0, 1.0]
    """
    exact = jnp.asarray(image, jnp.float32)
    return exact / 255 if jnp.issubdtype(image.dtype, jnp.integer) else exact
