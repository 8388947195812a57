"""A residual network for small images in Flax NNX, with batch normalisation, and its cross-entropy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

STAGES = 3
"""How often the image is made half as large and twice as deep, the first stage among them."""


class Block(nnx.Module):
    """Two convolutions and a way around them. Source: He et al. (2016), arXiv:1512.03385, section 3.

    Args:
        inputs: features of what comes in.
        outputs: features of what goes out; where they differ the image becomes half as large.
        rngs: source of the initial parameters.
    """

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        stride = 1 if inputs == outputs else 2
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.first = conv(inputs, outputs, (3, 3), strides=stride)
        self.second = conv(outputs, outputs, (3, 3))
        self.first_norm, self.second_norm = (nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs) for _ in range(2))
        self.around = conv(inputs, outputs, (1, 1), strides=stride) if stride > 1 else None

    def __call__(self, x: jax.Array, *, use_averages: bool) -> jax.Array:
        """From (B, height, width, inputs) to (B, height / stride, width / stride, outputs)."""
        hidden = nnx.relu(self.first_norm(self.first(x), use_running_average=use_averages))
        hidden = self.second_norm(self.second(hidden), use_running_average=use_averages)
        return nnx.relu(hidden + (x if self.around is None else self.around(x)))


class ResNet(nnx.Module):
    """A stem, three stages of blocks, the mean over the image, and class logits.

    Args:
        channels: of the images.
        num_classes: logits.
        width: features of the first stage; each later one has twice as many.
        blocks: blocks a stage.
        rngs: source of the initial parameters.
    """

    def __init__(self, channels: int, num_classes: int, *, width: int, blocks: int, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(channels, width, (3, 3), use_bias=False, rngs=rngs)
        self.stem_norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        widths = [width, *(width * 2**stage for stage in range(STAGES) for _ in range(blocks))]
        pairs = itertools.pairwise(widths)
        self.blocks = nnx.List(Block(inputs, outputs, rngs=rngs) for inputs, outputs in pairs)
        self.head = nnx.Linear(widths[-1], num_classes, rngs=rngs)

    def __call__(self, image: jax.Array, *, use_averages: bool) -> jax.Array:
        """Logits (B, classes) of images (B, height, width, channels).

        Args:
            image: the images, floats.
            use_averages: normalise by the averages that training has kept, and not by this batch.
        """
        x = nnx.relu(self.stem_norm(self.stem(image), use_running_average=use_averages))
        for block in self.blocks:
            x = block(x, use_averages=use_averages)
        return self.head(x.mean(axis=(1, 2)))


def resnet_classifier(
    image_shape: Sequence[int], num_classes: int, *, width: int = 16, blocks: int = 1
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """A `ResNet` as the two pure functions that training takes with `model_state=True`.

    Batches are dictionaries of `image` (B, height, width, channels), floats or bytes, which are taken as 0 to 1, and
    `label` (B,) int.

    Args:
        image_shape: (height, width, channels).
        num_classes: how many labels there are.
        width: as for `ResNet`.
        blocks: as for `ResNet`.

    Returns:
        `init(key) -> (params, model_state)`, of which the state is the averages of the batch statistics, and
        `loss(params, model_state, batch, keys) -> (losses, {"accuracy": ...}, model_state)`; with `keys` None it uses
        the averages.

    Example:
        >>> init, loss = resnet_classifier((8, 8, 1), 10, width=4)
        >>> params, model_state = init(jax.random.key(0))
        >>> batch = {"image": np.zeros((2, 8, 8, 1), np.uint8), "label": np.array([3, 5])}
        >>> losses, metrics, model_state = loss(params, model_state, batch, None)
        >>> losses.shape, metrics["accuracy"].shape
        ((2,), (2,))
    """

    def make(key: jax.Array) -> ResNet:
        return ResNet(image_shape[-1], num_classes, width=width, blocks=blocks, rngs=nnx.Rngs(key))

    definition = nnx.graphdef(nnx.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0))))

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, params, averages = nnx.split(make(key), nnx.Param, nnx.BatchStat)
        return params, averages

    def loss(params: Any, averages: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, Any], Any]:
        model = nnx.merge(definition, params, averages, copy=True)  # its statistics are written in place
        logits = model(as_floats(batch["image"]), use_averages=keys is None)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        accuracy = jnp.argmax(logits, axis=-1) == batch["label"]
        return losses, {"accuracy": accuracy}, nnx.state(model, nnx.BatchStat)

    return init, loss


def as_floats(image: jax.Array) -> jax.Array:
    """Images as float32; bytes as 0 to 1.

    >>> as_floats(jnp.array([0, 255], jnp.uint8)).tolist()
    [0.0, 1.0]
    """
    exact = jnp.asarray(image, jnp.float32)
    return exact / 255 if jnp.issubdtype(image.dtype, jnp.integer) else exact
