"""A residual network with batch normalisation, on handwritten digits or on images of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax

from outlay.core.error_types import RecipeError
from outlay.datasets.images import arrays, digits, images
from outlay.examples.residual_network import resnet_classifier
from outlay.recipes.recipe import Recipe
from outlay.train.data import rows_of

NUM_STEPS = 100
LEARNING_RATE = 1e-2
DIGIT_SHAPE = (8, 8, 1)
NUM_DIGITS = 10


def resnet(
    data: str | None = None, *, size: int | None = None, width: int = 16, blocks: int = 1, batch: int = 128
) -> Recipe:
    """Train to about 98 % held-out accuracy on 1,797 real digits; batch statistics are over the global batch.

    Args:
        data: a folder with a folder of images for each class, or an `.npz` file or folder of `.npy` files with `image`
            and `label`; one in ten is held out. Without it, `outlay.datasets.digits`.
        size: height and width that images in folders are scaled to.
        width: features of the first stage, of three.
        blocks: blocks a stage.
        batch: examples a step.

    Raises:
        DataError: there are no such images, or they cannot be read.
        RecipeError: the data are not images.

    Example:
        >>> resnet(width=4).data[0]["image"].shape
        (128, 8, 8, 1)
    """
    train, test, num_classes = _digits() if data is None else _own(data, size)
    shape = rows_of(train, np.zeros(1, int))["image"].shape[1:]
    if len(shape) != 3:
        raise RecipeError(
            f"the images in {data} have shape {shape} each, but a residual network takes (height, width, channels)"
            "\n  fix: image[..., None] for grey ones"
        )
    init, loss = resnet_classifier(shape, num_classes, width=width, blocks=blocks)
    return Recipe.training(
        "resnet",
        init_params=init,
        loss=loss,
        optimizer=optax.adamw(optax.cosine_decay_schedule(LEARNING_RATE, NUM_STEPS), weight_decay=1e-2),
        train=train,
        test=test,
        batch_size=batch,
        steps=NUM_STEPS,
        model_state=True,
    )


def _digits() -> tuple[Any, Any, int]:
    train, test = ({**part, "image": part["image"].reshape(-1, *DIGIT_SHAPE)} for part in digits())
    return train, test, NUM_DIGITS


def _own(data: str, size: int | None) -> tuple[Any, Any, int]:
    """Return training examples, held-out examples, and the number of classes."""
    path = Path(data)
    if path.suffix == ".npz" or (path.is_dir() and any(path.glob("*.npy"))):
        num_classes = 1 + int(arrays(path, "label")[:]["label"].max())
        return *arrays(path, "image", "label").held_out(), num_classes
    examples = images(path, size=None if size is None else (size, size))
    return *examples.held_out(), len(examples.classes)
