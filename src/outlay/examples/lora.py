"""Low-rank adapters over a language model that stays as it is: its weights from a file, whole or as 8-bit integers."""

from __future__ import annotations

import dataclasses
from typing import Any

import optax

from outlay.core.error_types import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.datasets.tokens import TokenDtype
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.models.transformer.config import Dtype
from outlay.models.transformer.language_model import adapted_language_model
from outlay.models.transformer.published import MODELS
from outlay.recipes.corpus import bytes_like, corpus
from outlay.recipes.lm import NUM_WARMUP, lm_layouts
from outlay.recipes.pretrained import pretrained
from outlay.recipes.recipe import Recipe
from outlay.recipes.smaller_lm import LmSizes, smaller_lm
from outlay.recipes.smaller_mesh import SmallerMesh

NUM_STEPS = 100
LAYOUTS = ("fsdp", "dp", "tp")


def lora(
    model: str = "tiny",
    *,
    from_: str | None = None,
    data: str | None = None,
    token_dtype: TokenDtype = "uint16",
    column: str | None = None,
    rank: int = 8,
    int8: bool = False,
    sequence: int | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    learning_rate: float = 3e-3,
    dtype: Dtype | None = None,
    remat: str = "none",
) -> Recipe:
    """Train adapters beside the projections of every layer; the model itself has no gradients and no moments.

    Args:
        model: which, by name, as for `lm`; of Llama's kind where its weights are read.
        from_: its weights: a `.safetensors` file, or the folder of a model, by the names that Hugging Face's have. A
            random model without it, which is good for prices only.
        data: a file or folder of text or tokens, as for `lm`; without it, the sources of Python's standard library.
        token_dtype: the dtype of the numbers in `.bin` files.
        column: as for `lm`.
        rank: features of an adapter.
        int8: keep the projections of the model as 8-bit integers.
        sequence: tokens an example.
        batch: examples a step.
        accumulate: microbatches a step.
        learning_rate: the highest.
        dtype: what it computes in.
        remat: as for `lm`.

    Raises:
        DataError: the data are not there, or cannot be read.
        RecipeError: there is no such model, the weights belong to another one, or it cannot be adapted in this way.

    Example:
        >>> recipe = lora(sequence=64, rank=2)
        >>> list(recipe.layouts)
        ['fsdp', 'dp', 'tp']
    """
    if model not in MODELS:
        raise RecipeError(f"lora cannot be made: there is no model {model!r}: {did_you_mean(model, MODELS)}")
    usual = MODELS[model]
    sequence = usual.sequence if sequence is None else sequence
    changes = {"adapter_rank": rank, "is_int8": int8, "remat": remat, "num_positions": sequence}
    try:
        config = dataclasses.replace(usual.config, **changes, **({} if dtype is None else {"dtype": dtype}))
    except ValueError as error:
        raise RecipeError(f"lora cannot be made: {error}") from error
    if rank < 1:
        raise RecipeError(f"lora cannot be made: rank={rank}: adapters need 1 feature or more")
    batch_size = usual.batch if batch is None else batch
    text = corpus(data, sequence, batch_size, config.vocabulary, token_dtype, column)
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, NUM_WARMUP, NUM_STEPS, learning_rate / 10)
    recipe = _recipe(LmSizes(config, batch_size, accumulate), text, optax.adam(schedule))
    return recipe if from_ is None else dataclasses.replace(recipe, begin=pretrained(from_, config, "model_state"))


def _recipe(sizes: LmSizes, text: tuple[Any, Any, str], optimizer: optax.GradientTransformation) -> Recipe:
    """Return the recipe of these sizes, which learns from this text; it makes itself smaller."""
    train, test, token = text
    init, loss = adapted_language_model(sizes.config, token)
    layouts, meshes = lm_layouts(sizes.config, "model_state")
    adapters = Layout([("params.**", replicate())])

    def small(less: SmallerMesh) -> Recipe:
        fewer = smaller_lm(sizes, less)
        return _recipe(fewer, bytes_like(train, fewer.config.num_positions, fewer.batch, token), optimizer)

    return Recipe.training(
        "lora",
        init_params=init,
        loss=loss,
        optimizer=optimizer,
        train=train,
        test=test,
        batch_size=sizes.batch,
        steps=NUM_STEPS,
        accumulate=sizes.accumulate,
        model_state=True,
        layouts={name: adapters + layouts[name] for name in LAYOUTS},
        meshes={name: meshes[name] for name in LAYOUTS if name in meshes},
        small=small,
    )
