"""Handwritten digits: 1,797 real images of 8 x 8 pixels that come with Outlay, and a small Flax classifier."""

from __future__ import annotations

import optax
from jax.sharding import PartitionSpec as P

from outlay.datasets.images import digits as digit_images
from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel, fsdp, tensor_parallel
from outlay.models.classifiers import classifier
from outlay.recipes.recipe import MIN_SIZE, Recipe, training_layouts

SIZES = (64, 256, 128, 10)
NUM_STEPS = 300
BATCH_SIZE = 128


def digits() -> Recipe:
    """Train to about 98 % held-out accuracy in seconds, the same under every layout."""
    init_params, loss = classifier(SIZES, dropout_rate=0.3)
    train, test = digit_images()
    layouts = training_layouts()
    # Samples stay where they are. Next to kernels as small as these, the compiler would gather the whole batch instead.
    layouts["fsdp"] = Layout([("hidden", P("data"))]) + layouts["fsdp"]
    # Alternating layers are split by outputs and by inputs, so each pair exchanges activations once. The head's ten
    # outputs stay together.
    megatron = tensor_parallel("model", columns=["params.layers.0.*"], rows=["params.layers.1.kernel"])
    layouts["fsdp+tp"] = megatron + fsdp("data", min_size=MIN_SIZE) + data_parallel("data")
    return Recipe.training(
        "digits",
        init_params=init_params,
        loss=loss,
        optimizer=optax.adamw(optax.cosine_decay_schedule(1e-2, NUM_STEPS), weight_decay=0.1),
        train=train,
        test=test,
        batch_size=BATCH_SIZE,
        steps=NUM_STEPS,
        layouts=layouts,
        meshes={"fsdp+tp": "data=-1,model=2"},
    )
