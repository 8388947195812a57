"""A language model of Python's own standard library, byte by byte; the sizes beyond a laptop are there to price."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.core.errors import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.execute.program import Program
from outlay.models.transformer.config import SIZES, Dtype, TransformerConfig
from outlay.models.transformer.language_model import language_model
from outlay.models.transformer.sampling import sample_tokens
from outlay.recipes.lm_layouts import lm_layouts
from outlay.recipes.python_sources import python_sources
from outlay.recipes.recipe import Recipe

Size = Literal["tiny", "small", "100m", "1b", "3b", "8b", "70b"]

NUM_STEPS = 200
NUM_WARMUP = 10
NUM_HELD_OUT_BYTES = 2**16
PROMPT = b"def "
NUM_SAMPLED = 240
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Training:
    """How a size is trained unless told otherwise.

    Attributes:
        sequence: bytes an example.
        batch: examples a step.
        learning_rate: the highest.
    """

    sequence: int
    batch: int
    learning_rate: float


TRAINING: dict[Size, Training] = {
    "tiny": Training(128, 16, 1e-2),
    "small": Training(256, 32, 3e-3),
    "100m": Training(1024, 64, 1e-3),
    "1b": Training(2048, 32, 5e-4),
    "3b": Training(4096, 256, 3e-4),
    "8b": Training(4096, 256, 3e-4),
    "70b": Training(4096, 512, 1.5e-4),
}


def lm(
    size: Size = "tiny",
    sequence: int | None = None,
    batch: int | None = None,
    remat: bool = False,
    accumulate: int = 1,
    dtype: Dtype | None = None,
) -> Recipe:
    """A decoder-only transformer that learns to write Python, byte by byte.

    Args:
        size: the model's, by its number of parameters; `tiny` trains in a minute on a laptop.
        sequence: bytes an example; the size's own if None.
        batch: examples a step; the size's own if None.
        remat: compute each layer again in the backward pass, for memory.
        accumulate: microbatches a step.
        dtype: what it computes in; the size's own if None. Parameters are float32.

    Raises:
        RecipeError: there is no such size, or the corpus is not there or too short for the sequence.

    Example:
        >>> recipe = lm("tiny", sequence=64)
        >>> recipe.data[0]["tokens"].shape, list(recipe.layouts)
        ((16, 64), ['dp', 'zero1', 'fsdp', 'tp', 'fsdp+tp', 'fsdp+tp+sp'])
    """
    if size not in TRAINING:
        raise RecipeError(f"there is no size {size!r} of lm: {did_you_mean(size, TRAINING)}")
    usual = TRAINING[size]
    sequence = usual.sequence if sequence is None else sequence
    config = dataclasses.replace(SIZES[size], remat=remat, dtype=dtype or SIZES[size].dtype)
    train, held_out = python_sources(sequence)
    every = max(1, held_out.size // NUM_HELD_OUT_BYTES)
    init_params, loss = language_model(config)
    layouts, meshes = lm_layouts(tied=config.tied)
    return Recipe.training(
        "lm",
        init_params=init_params,
        loss=loss,
        optimizer=_optimizer(usual.learning_rate),
        train={"tokens": train},
        test={"tokens": held_out[::every]},
        batch_size=usual.batch if batch is None else batch,
        num_steps=NUM_STEPS,
        accumulate=accumulate,
        layouts=layouts,
        meshes=meshes,
        sample=lambda program, state: sampled_text(config, program, state, sequence),
    )


def _optimizer(learning_rate: float) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, NUM_WARMUP, NUM_STEPS, learning_rate / 10)
    return optax.adamw(schedule, b2=0.95, weight_decay=0.1)


def sampled_text(config: TransformerConfig, program: Program, state: Any, sequence: int) -> str:
    """What a trained model writes after `def `, drawn where its state lives.

    Args:
        config: the model's dims.
        program: the training program; in a job of several processes, each gets the whole text.
        state: its state.
        sequence: bytes in sight, as in training.
    """
    prompt = jnp.frombuffer(PROMPT, jnp.uint8)

    def draw(params: Any, key: jax.Array) -> jax.Array:
        return sample_tokens(
            config, params, prompt, key, num_tokens=NUM_SAMPLED, window=sequence, temperature=TEMPERATURE
        )

    everywhere = NamedSharding(program.mesh, PartitionSpec())
    drawn = jax.jit(draw, out_shardings=everywhere)(state.params, jax.random.key(0))
    return bytes(np.minimum(drawn, 255).astype(np.uint8)).decode("utf-8", errors="replace")
