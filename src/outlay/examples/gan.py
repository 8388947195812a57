"""A generator and a discriminator, each with its own optimizer, on handwritten digits or on images of one's own."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.core.error_types import RecipeError
from outlay.datasets.images import arrays, digits
from outlay.examples.residual_network import as_floats
from outlay.program.program import Program
from outlay.recipes.recipe import Recipe
from outlay.train.data import rows_of

NUM_STEPS = 1000
NUM_NOISE = 16
DIGIT_SIDE = 8
SHADES = " .:-=+*#%@"
NUM_DRAWN = 6


def gan(data: str | None = None, *, width: int = 128, batch: int = 128) -> Recipe:
    """Train to draw digits; samples are shown after the run.

    Args:
        data: an `.npz` file or a folder of `.npy` files with small grey images `image` (n, height, width), of bytes or
            of floats from 0 to 1; one in ten is held out. Without it, `outlay.datasets.digits`.
        width: features inside both networks.
        batch: examples a step.

    Raises:
        DataError: there are no such images.
        RecipeError: the images are in colour.

    Example:
        >>> gan(width=8).data[0]["image"].shape
        (128, 8, 8)
    """
    train, test = _digits() if data is None else arrays(data, "image").held_out()
    shape = rows_of(train, np.zeros(1, int))["image"].shape[1:]
    if len(shape) != 2:
        raise RecipeError(
            f"the images in {data} have shape {shape} each, but this recipe draws grey ones, (height, width)"
            "\n  fix: image.mean(axis=-1)"
        )
    num_pixels = math.prod(shape)

    def init_params(key: jax.Array) -> dict[str, Any]:
        of_generator, of_discriminator = jax.random.split(key)
        return {
            "generator": _dense_layers(of_generator, (NUM_NOISE, width, width, num_pixels)),
            "discriminator": _dense_layers(of_discriminator, (num_pixels, width, width, 1)),
        }

    adam = optax.adam(2e-4, b1=0.5)  # Source: Radford et al. (2016), arXiv:1511.06434, section 4
    return Recipe.training(
        "gan",
        init_params=init_params,
        loss=adversarial_loss,
        optimizer=optax.partition({"generator": adam, "discriminator": adam}, _labels),
        train=train,
        test=test,
        batch_size=batch,
        steps=NUM_STEPS,
        sample=lambda program, state: _drawing(program, state, shape),
    )


def adversarial_loss(params: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Add the losses of both networks; each network learns from its own loss only, since the other is frozen in it.

    Source: Goodfellow et al. (2014), arXiv:1406.2661, with the generator's loss of section 3.

    Args:
        params: the parameters, as `generator` and `discriminator`.
        batch: the batch, with `image`.
        keys: one per sample, for its noise; in evaluation always the same ones.
    """
    real = as_floats(batch["image"])
    real = real.reshape(len(real), -1)
    keys = jax.random.split(jax.random.key(0), len(real)) if keys is None else keys
    fake = generated(params["generator"], jax.vmap(lambda key: jax.random.normal(key, (NUM_NOISE,)))(keys))
    frozen = jax.lax.stop_gradient
    on_real, on_fake = (_judged(params["discriminator"], pixels) for pixels in (real, frozen(fake)))
    of_discriminator = jax.nn.softplus(-on_real) + jax.nn.softplus(on_fake)
    of_generator = jax.nn.softplus(-_judged(frozen(params["discriminator"]), fake))
    metrics = {"generator": of_generator, "discriminator": of_discriminator, "called_real": on_fake > 0}
    return of_discriminator + of_generator, metrics


def generated(layers: Any, noise: jax.Array) -> jax.Array:
    """Generate pixels (B, n) from 0 to 1 of noise (B, `NUM_NOISE`)."""
    return jax.nn.sigmoid(_through(layers, noise))


def _digits() -> tuple[Any, Any]:
    train, test = ({"image": part["image"].reshape(-1, DIGIT_SIDE, DIGIT_SIDE)} for part in digits())
    return train, test


def _labels(params: dict[str, Any]) -> dict[str, Any]:
    """Label each parameter with its optimizer's name, which is its network's."""
    return {name: jax.tree.map(lambda _, name=name: name, network) for name, network in params.items()}


def _dense_layers(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"kernel": jax.random.normal(key, (inputs, outputs)) * math.sqrt(2 / inputs), "bias": jnp.zeros(outputs)}
        for key, inputs, outputs in zip(keys, sizes, sizes[1:], strict=False)
    ]


def _through(layers: Any, x: jax.Array) -> jax.Array:
    *hidden, last = layers
    for layer in hidden:
        # Source of the slope: Radford et al. (2016), section 4, as of the optimizer's numbers.
        x = jax.nn.leaky_relu(x @ layer["kernel"] + layer["bias"][None], 0.2)
    return x @ last["kernel"] + last["bias"][None]


def _judged(layers: Any, pixels: jax.Array) -> jax.Array:
    """Return how real images (B, n) look, (B,); above 0 is real."""
    return _through(layers, pixels)[:, 0]


def _drawing(program: Program, state: Any, shape: tuple[int, ...]) -> str:
    """Draw a few generated images side by side, in characters."""
    noise = jax.random.normal(jax.random.key(0), (NUM_DRAWN, NUM_NOISE))
    # Every process of a job draws, and numpy reads no array that is partly in another one.
    everywhere = NamedSharding(program.mesh, PartitionSpec())
    pixels = np.asarray(jax.jit(generated, out_shardings=everywhere)(state.params["generator"], noise))
    # A pixel of 1 would be one shade beyond the last.
    shades = np.array(list(SHADES))[np.minimum((pixels * len(SHADES)).astype(int), len(SHADES) - 1)]
    pictures = shades.reshape(NUM_DRAWN, *shape)
    return "\n".join("   ".join("".join(picture[row]) for picture in pictures) for row in range(shape[0]))
