"""A language model whose feed-forward layers are mixtures of experts, split over devices by expert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import optax
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.datasets.tokens import TokenDtype
from outlay.layout.expert_rules import expert_parallel
from outlay.layout.layout import Layout
from outlay.layout.pipelines import pipeline
from outlay.layout.strategies import data_parallel, fsdp
from outlay.models.transformer.config import Dtype, Precision
from outlay.models.transformer.expert_config import ExpertConfig
from outlay.models.transformer.expert_model import expert_language_model
from outlay.models.transformer.published_experts import EXPERT_MODELS
from outlay.program.program import Program
from outlay.recipes.corpus import bytes_like, corpus
from outlay.recipes.lm import NUM_MICROBATCHES, NUM_STEPS, NUM_WARMUP, inside, sampled_text
from outlay.recipes.recipe import Recipe
from outlay.recipes.smaller_lm import LmSizes, smaller_lm
from outlay.recipes.smaller_mesh import SmallerMesh
from outlay.train.precision import state_in

EXPERTS = "params.layers.feed_forward.experts.**"
"""The stacks of the experts: (layers, experts, inputs, outputs)."""


def moe(
    model: str = "tiny",
    *,
    experts: int | None = None,
    top_k: int | None = None,
    capacity_factor: float = 1.25,
    max_dropped: float | None = None,
    dropless: bool = False,
    layers: int | None = None,
    sequence: int | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    param_dtype: Dtype | None = None,
    dtype: Dtype | None = None,
    precision: Precision | None = None,
    optimizer_dtype: Dtype | None = None,
    remat: str = "none",
    loss_chunks: int = 1,
    data: str | None = None,
    token_dtype: TokenDtype = "uint16",
    column: str | None = None,
) -> Recipe:
    """Train a transformer with mixtures of experts to write Python, byte by byte, or what it is given.

    Its metrics have the load of each expert, the load of the busiest one, and the share of choices that were dropped.

    Args:
        model: which, by name: `tiny` trains in a minute on a laptop; `mixtral-8x7b`, `qwen3-30b-a3b`,
            `qwen3-235b-a22b` and `deepseek-v3-like` are there to price.
        experts: experts of a layer.
        top_k: experts of a token.
        capacity_factor: how many times the average an expert takes of each sequence; further tokens are dropped.
        max_dropped: the largest share of choices that may be dropped of the held-out data; a run that drops more fails.
        dropless: no capacity; then experts cannot be split over devices by expert.
        layers: layers.
        sequence: bytes an example.
        batch: examples a step.
        accumulate: microbatches a step.
        param_dtype: what parameters and their gradients are.
        dtype: the dtype of computations.
        precision: `fp8`, `fp8-delayed` or `fp8-blockwise` for products with the kernels of attention and experts in
            FP8; routers stay as they are. Not with `dropless`.
        optimizer_dtype: the dtype of the optimizer's state.
        remat: as for `lm`.
        loss_chunks: the number of pieces of a sequence for the loss.
        data: a file or folder of text or tokens, as for `lm`; without it, the sources of Python's standard library.
        token_dtype: the dtype of the numbers in `.bin` files.
        column: as for `lm`.

    Raises:
        DataError: the data are missing or cannot be read.
        RecipeError: there is no such model, or what was asked for does not fit together.

    Example:
        >>> recipe = moe(sequence=64, experts=4)
        >>> list(recipe.layouts)
        ['ep+fsdp', 'ep', 'ep+fsdp+tp', 'pp+ep+fsdp', 'dp', 'fsdp']
    """
    if model not in EXPERT_MODELS:
        raise RecipeError(f"moe cannot be made: there is no model {model!r}: {did_you_mean(model, EXPERT_MODELS)}")
    usual = EXPERT_MODELS[model]
    sequence = usual.sequence if sequence is None else sequence
    changes = {
        "num_experts": experts,
        "top_k": top_k,
        "capacity_factor": None if dropless else capacity_factor,
        "max_dropped": None if dropless else max_dropped,
        "num_layers": layers,
        "param_dtype": param_dtype,
        "dtype": dtype,
        "num_positions": sequence,
        "remat": remat,
        "loss_chunks": loss_chunks,
    }
    try:
        config = dataclasses.replace(
            usual.config, **{name: value for name, value in changes.items() if value is not None}
        )
    except ValueError as error:
        raise RecipeError("moe cannot be made:" + str(error).partition(":")[2]) from error
    if sequence % loss_chunks:
        raise RecipeError(f"moe cannot be made: loss_chunks={loss_chunks} does not divide the sequence of {sequence}")
    if precision is not None and dropless:
        raise RecipeError(
            f"moe cannot be made: precision={precision!r} with dropless: without a capacity experts multiply block by "
            "block in a function with a derivative of its own, out of reach of FP8\n  fix: leave out dropless "
            "(--dropless), or precision (--precision)"
        )
    batch_size = usual.batch if batch is None else batch
    text = corpus(data, sequence, batch_size, config.vocabulary, token_dtype, column)
    highest = usual.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(0.0, highest, NUM_WARMUP, NUM_STEPS, highest / 10)
    adamw = optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    wider = optimizer_dtype or config.param_dtype
    optimizer = adamw if wider == config.param_dtype else state_in(adamw, wider)
    recipe = _recipe(LmSizes(config, batch_size, accumulate, precision), text, optimizer)
    if config.max_dropped is None or recipe.evaluate is None:
        return recipe
    return dataclasses.replace(recipe, evaluate=within_limit(recipe.evaluate, config.max_dropped))


def within_limit(
    evaluate: Callable[[Program, Any], dict[str, float]], max_dropped: float
) -> Callable[[Program, Any], dict[str, float]]:
    """Return an evaluation that raises where more than a share of the choices of held-out data is dropped.

    Args:
        evaluate: as for `Recipe`, with the metric `dropped_share`.
        max_dropped: the share.
    """

    def checked(program: Program, state: Any) -> dict[str, float]:
        numbers = evaluate(program, state)
        if numbers["dropped_share"] > max_dropped:
            raise RecipeError(
                f"experts drop {100 * numbers['dropped_share']:.1f} % of the choices of held-out data, more than "
                f"max_dropped={max_dropped}\n  fix: a larger capacity_factor (--capacity-factor), or a router that "
                "has learned longer to balance its load"
            )
        return numbers

    return checked


def _recipe(sizes: LmSizes, text: tuple[Any, Any, str], optimizer: optax.GradientTransformation) -> Recipe:
    """Return the recipe of these sizes, which learns from this text; it makes itself smaller."""
    train, test, token = text
    config: Any = sizes.config
    init_params, loss = expert_language_model(config, token)
    layouts, meshes = _layouts(config)
    if sizes.precision is not None:
        from outlay.recipes.lm_precision import in_precision

        layouts = in_precision(layouts, sizes.precision, kernels_in_fp8(config))

    def sample(program: Program, state: Any) -> str:
        return sampled_text(config, program, state, config.num_positions)

    def small(less: SmallerMesh) -> Recipe:
        fewer = smaller_lm(sizes, less)
        return _recipe(fewer, bytes_like(train, fewer.config.num_positions, fewer.batch, token), optimizer)

    return Recipe.training(
        "moe",
        init_params=init_params,
        loss=loss,
        optimizer=optimizer,
        train=train,
        test=test,
        batch_size=sizes.batch,
        steps=NUM_STEPS,
        accumulate=sizes.accumulate,
        layouts=layouts,
        meshes=meshes,
        sample=sample if token == "byte" else None,
        small=small,
    )


def kernels_in_fp8(config: ExpertConfig) -> tuple[str, ...]:
    """Return the kernels that are multiplied in FP8: no router, whose choices hang on small differences."""
    layers = "params.layers"
    shared = (f"{layers}.feed_forward.shared.**.kernel",) if config.shared_hidden else ()
    return (f"{layers}.attention.**.kernel", f"{layers}.feed_forward.experts.**.kernel", *shared)


def _layouts(config: ExpertConfig) -> tuple[dict[str, Layout], dict[str, str]]:
    """Return layouts and meshes by name; without a capacity, only layouts that leave experts together."""
    # As for `lm`: a head that is gathered for each piece of the loss would be moved again for each.
    whole = inside("table" if config.tied else "head", P())
    alone = {
        "dp": inside("residual", P("data")) + data_parallel(),
        "fsdp": fsdp(pattern="params.**.kernel", min_size=1)
        + fsdp(pattern="params.**.embedding", min_size=1)
        + whole
        + inside("residual", P("data"))
        + data_parallel(),
    }
    if config.capacity_factor is None:
        return alone, {}
    both = ("data", "expert")
    samples = inside("residual", P(both))
    apart = expert_parallel("expert", pattern=EXPERTS, dim=1) + samples
    rest = fsdp(pattern="params.**.kernel", min_size=1) + fsdp(pattern="params.**.embedding", min_size=1)
    tensor = tensor_parallel(config) + inside("queries", P(both, None, "model"))
    stages = Layout([("params.layers.**", pipeline("stage", microbatches=NUM_MICROBATCHES))])
    layouts = {
        "ep+fsdp": whole + apart + rest,
        "ep": apart,
        "ep+fsdp+tp": tensor + whole + apart + rest,
        "pp+ep+fsdp": stages + whole + apart + rest,
    }
    two = "data=-1,expert=2"
    meshes = {"ep+fsdp": two, "ep": two, "ep+fsdp+tp": f"{two},model=2", "pp+ep+fsdp": f"stage=2,{two}"}
    return layouts | alone, meshes


def tensor_parallel(config: ExpertConfig) -> Layout:
    """Split heads, and the hidden features of each expert, over `model`."""
    hidden = [
        (f"params.layers.feed_forward.experts.{name}.kernel", P(None, None, None, "model")) for name in _inward(config)
    ]
    heads = [(f"params.layers.attention.{name}.kernel", P(None, None, "model")) for name in ("query", "key", "value")]
    outward = [
        ("params.layers.feed_forward.experts.down.kernel", P(None, None, "model")),
        ("params.layers.attention.output.kernel", P(None, "model")),
    ]
    return Layout([*hidden, *heads, *outward])


def _inward(config: ExpertConfig) -> tuple[str, ...]:
    return ("gate", "up") if config.gated else ("up",)
