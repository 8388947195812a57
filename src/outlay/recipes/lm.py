"""A language model of Python's own standard library, byte by byte; larger models are there to be priced."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.datasets.tokens import TokenDtype
from outlay.layout.layout import Layout
from outlay.layout.rule import Rule
from outlay.layout.strategies import data_parallel, fsdp, zero1
from outlay.models.transformer.config import (
    Activation,
    Dtype,
    NormKind,
    Positions,
    Precision,
    TransformerConfig,
    remat_problems,
)
from outlay.models.transformer.language_model import language_model, sample_tokens
from outlay.models.transformer.published import MODELS, PublishedModel
from outlay.program.program import Program
from outlay.recipes.corpus import bytes_like, corpus
from outlay.recipes.pretrained import pretrained
from outlay.recipes.recipe import Recipe
from outlay.recipes.smaller_lm import LmSizes, smaller_lm
from outlay.recipes.smaller_mesh import SmallerMesh
from outlay.train.precision import state_in

NUM_BYTES = 256
NUM_STEPS = 200
NUM_WARMUP = 10
PROMPT = b"def "
MAX_SAMPLED = 240
TEMPERATURE = 0.7


def lm(
    model: str = "tiny",
    *,
    vocabulary: int | None = None,
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    gated: bool | None = None,
    tied: bool | None = None,
    activation: Activation | None = None,
    positions: Positions | None = None,
    norm: NormKind | None = None,
    biases: bool | None = None,
    window: int | None = None,
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
    from_: str | None = None,
) -> Recipe:
    """Train a decoder-only transformer to write Python, byte by byte, or what it is given.

    A parameter that is None takes the model's own value.

    Args:
        model: which, by name: `tiny` trains in a minute on a laptop, `llama3-8b` and others are there to price.
        vocabulary: number of tokens; at least 256, the bytes.
        width: features of the residual stream.
        layers: layers.
        heads: query heads.
        kv_heads: key and value heads, each shared by a group of query heads; if None and `heads` is given, as many as
            these where the model has no groups.
        head_dim: features of a head; if None and `width` or `heads` is given, width / heads.
        hidden: features of the feed-forward layers inside.
        gated: whether the feed-forward layer has a gate.
        tied: whether the head that gives logits is the embedding.
        activation: the activation of the feed-forward layer.
        positions: how a token knows its position.
        norm: the norm of the residual stream.
        biases: whether projections and layer norms have biases.
        window: tokens that a query sees; all before it if None.
        sequence: bytes an example.
        batch: examples a step.
        accumulate: microbatches a step.
        param_dtype: what parameters and their gradients are.
        dtype: the dtype of computations.
        precision: `fp8`, `fp8-delayed` or `fp8-blockwise` for products with the kernels of the layers in FP8
            (`outlay.layout.fp8`).
        optimizer_dtype: the dtype of the optimizer's state; if wider than the parameters', it keeps master copies of
            them.
        remat: what the backward pass recomputes: `none`, `attention`, `products`, `full`, names of values to keep, such
            as `queries,keys,values`, or a policy of MaxText, torchtitan or Megatron, such as `memory_budget:0.5`; see
            `TransformerConfig`.
        loss_chunks: the number of pieces of a sequence for the loss, so that not all logits exist at a time.
        data: a file or a folder of text, whose bytes are the tokens, or of token numbers (`.bin`, `.npy`); one sequence
            in ten is held out. Without it, the sources of Python's standard library.
        token_dtype: the dtype of the numbers in `.bin` files.
        column: the column of a Parquet or Arrow table that the data are, with sequences of token numbers.
        from_: weights to start from: a `.safetensors` file, or the folder of a Llama-like model with Hugging Face's
            names.

    Raises:
        DataError: the data are missing or cannot be read.
        RecipeError: there is no such model, or what was asked for does not fit together (everything is listed); or the
            corpus is missing or too short for the sequence.

    Example:
        >>> recipe = lm("tiny", sequence=64)
        >>> recipe.data[0]["tokens"].shape
        (16, 64)
        >>> [name for name in recipe.layouts if "cp" in name]
        ['cp', 'fsdp+cp', 'fsdp+tp+cp', 'zero1+tp+sp+cp', 'pp+cp', 'pp+fsdp+cp', 'pp+fsdp+tp+cp', 'pp+zero1+tp+sp+cp']
    """
    if model not in MODELS:
        problems = [f"there is no model {model!r}: {did_you_mean(model, MODELS)}", *remat_problems(remat)]
        raise RecipeError("\n  ".join(["lm cannot be made:", *problems]))
    usual = MODELS[model]
    sequence = usual.sequence if sequence is None else sequence
    changes = {
        "vocabulary": vocabulary,
        "width": width,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "hidden": hidden,
        "gated": gated,
        "tied": tied,
        "activation": activation,
        "positions": positions,
        "norm": norm,
        "biases": biases,
        "window": window,
        "param_dtype": param_dtype,
        "dtype": dtype,
    }
    config = _changed(
        usual.config,
        {name: value for name, value in changes.items() if value is not None},
        {"remat": remat, "loss_chunks": loss_chunks, "num_positions": sequence},
    )
    batch_size = usual.batch if batch is None else batch
    text = corpus(data, sequence, batch_size, config.vocabulary, token_dtype, column)
    optimizer = _optimizer(usual, optimizer_dtype or config.param_dtype, config)
    recipe = _recipe(LmSizes(config, batch_size, accumulate, precision), text, optimizer)
    return recipe if from_ is None else dataclasses.replace(recipe, begin=pretrained(from_, config, "params"))


def _recipe(sizes: LmSizes, text: tuple[Any, Any, str], optimizer: optax.GradientTransformation) -> Recipe:
    """Return the recipe of these sizes, which learns from this text; it makes itself smaller."""
    config = sizes.config
    train, test, token = text
    init_params, loss = language_model(config, token)
    layouts, meshes = with_pipelines(*with_contexts(config, *lm_layouts(config)))
    if sizes.precision is not None:
        from outlay.recipes.lm_precision import in_precision

        layouts = in_precision(layouts, sizes.precision)

    def sample(program: Program, state: Any) -> str:
        return sampled_text(config, program, state, config.num_positions)

    def small(less: SmallerMesh) -> Recipe:
        fewer = smaller_lm(sizes, less)
        return _recipe(fewer, bytes_like(train, fewer.config.num_positions, fewer.batch, token), optimizer)

    return Recipe.training(
        "lm",
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


def _changed(usual: TransformerConfig, changes: dict[str, Any], how: dict[str, Any]) -> TransformerConfig:
    """Change a model's config as requested, and what follows from the changes.

    Raises:
        RecipeError: it does not fit together; all that does not is listed.
    """
    problems = []
    changed = {**dataclasses.asdict(usual), **changes, **how}
    if "num_heads" in changes and "num_kv_heads" not in changes and usual.num_kv_heads == usual.num_heads:
        changed["num_kv_heads"] = changed["num_heads"]
    if {"width", "num_heads"} & set(changes) and "head_dim" not in changes:
        width, heads = changed["width"], max(changed["num_heads"], 1)  # 0 heads are refused below, with all else
        if width % heads:
            problems.append(f"width {width} / {heads} heads leaves {width % heads} over: give head_dim (--head-dim)")
        changed["head_dim"] = max(width // heads, 1)
    if changed["vocabulary"] < NUM_BYTES:
        problems.append(f"vocabulary={changed['vocabulary']}: it reads bytes, so make it {NUM_BYTES} or more")
    sequence, chunks = changed["num_positions"], changed["loss_chunks"]
    if chunks > 0 and sequence % chunks:
        problems.append(f"loss_chunks={chunks} does not divide the sequence of {sequence}")
    try:
        config = TransformerConfig(**changed)
    except ValueError as error:
        problems += [line.strip() for line in str(error).splitlines()[1:]]  # the first line is its headline
    if problems:
        raise RecipeError("\n  ".join(["lm cannot be made:", *problems]))
    return config


def _optimizer(usual: PublishedModel, dtype: str, config: TransformerConfig) -> optax.GradientTransformation:
    highest = usual.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(0.0, highest, NUM_WARMUP, NUM_STEPS, highest / 10)
    # As Llama 2 was trained: b2, decay, and a tenth of the rate at the end (arXiv:2307.09288, section 2.2).
    adamw = optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    return adamw if dtype == config.param_dtype else state_in(adamw, dtype)


def sampled_text(config: TransformerConfig, program: Program, state: Any, sequence: int) -> str:
    """Sample what a trained model writes after `def `, on the devices of its state.

    Args:
        config: the model's dims.
        program: the training program; in a job of several processes, each gets the whole text.
        state: its state.
        sequence: bytes in sight, as in training.
    """
    prompt = jnp.frombuffer(PROMPT, jnp.uint8)

    def draw(params: Any, key: jax.Array) -> jax.Array:
        # Each token costs a pass over a whole window: more than a window would take longer than a short training.
        return sample_tokens(
            config, params, prompt, key, num_tokens=min(MAX_SAMPLED, sequence), window=sequence, temperature=TEMPERATURE
        )

    drawn = jax.jit(draw, out_shardings=NamedSharding(program.mesh, P()))(state.params, jax.random.key(0))
    # A vocabulary of more than the bytes has tokens that are none.
    return bytes(np.minimum(drawn, NUM_BYTES - 1).astype(np.uint8)).decode("utf-8", errors="replace")


COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
"""Projections into a branch: stacked kernels (layers, width, outputs, …), and biases (layers, outputs, …)."""

ROWS = ("attention.output", "feed_forward.down")
"""Projections out of a branch: stacked kernels (layers, inputs, …, width). Their biases (layers, width) stay whole."""

TWO_AXES = "data=-1,model=2"


def lm_layouts(config: TransformerConfig, root: str = "params") -> tuple[dict[str, Layout], dict[str, str]]:
    """Return layouts and meshes by name: `dp`, `zero1`, `fsdp`, `hsdp`, `tp`, `fsdp+tp` and so on.

    `hsdp` is FSDP over the axis `fsdp`, such as the devices of a host, and copies of that over `data`.

    Args:
        config: the transformer, for which of its parts there are to split.
        root: what holds the transformer's own parameters in the state.
    """
    by_sample = inside("residual", P("data")) + data_parallel()
    heads = inside("queries", P("data", None, "model"))
    # A microbatch with fewer samples than devices is replicated, and the plan says so.
    samples = Layout([Rule("queries", P("data"), otherwise="replicate", optional=True)])
    # The head is gathered once: left to itself, the compiler moves the logits of all samples instead.
    whole = inside("table" if config.tied else "head", P())
    vocabulary = inside("table", P("model")) + inside("head", P(None, "model"))
    in_heads = megatron(config, root)
    two_axes = in_heads + _kernels(fsdp, root) + vocabulary
    by_token = heads + sequence_parallel() + data_parallel()
    layouts = {
        "dp": samples + data_parallel(),
        "zero1": _kernels(zero1, "opt_state") + samples + data_parallel(),
        "fsdp": _kernels(fsdp, root) + whole + samples + by_sample,
        "hsdp": _kernels(functools.partial(fsdp, "fsdp"), root) + whole + _over_both_axes(),
        "tp": in_heads + heads + by_sample,
        "fsdp+tp": two_axes + heads + by_sample,
        "fsdp+tp+sp": two_axes + by_token,
        "zero1+tp+sp": in_heads + _kernels(zero1, "opt_state") + vocabulary + by_token,
    }
    return layouts, {"hsdp": "data=2,fsdp=-1", **{name: TWO_AXES for name in layouts if "tp" in name}}


def with_contexts(
    config: TransformerConfig, layouts: dict[str, Layout], meshes: dict[str, str]
) -> tuple[dict[str, Layout], dict[str, str]]:
    """Add layouts in which tokens are split over `context`: `cp`, `fsdp+cp`, `fsdp+tp+cp` and `zero1+tp+sp+cp`."""
    whole = inside("table" if config.tied else "head", P())
    vocabulary = inside("table", P("model")) + inside("head", P(None, "model"))
    # Devices with other tokens of a sample have the same parameters, as those with other samples have: no copy pays.
    sharded = _kernels(functools.partial(fsdp, ("data", "context")), "params")
    split_optimizer = _kernels(functools.partial(zero1, ("data", "context")), "opt_state")
    stream, tensor = inside("residual", P("data", "context")), megatron(config) + vocabulary
    plain, heads = stream + _by_token(P("data", "context")), _by_token(P("data", "context", "model"))
    new = {"cp": plain, "fsdp+cp": sharded + whole + plain}
    with_heads = {
        "fsdp+tp+cp": tensor + sharded + stream + heads,
        "zero1+tp+sp+cp": tensor + split_optimizer + sequence_parallel("context") + heads,
    }
    mesh = "data=-1,context=2"
    new_meshes = dict.fromkeys(new, mesh) | dict.fromkeys(with_heads, f"{mesh},model=2")
    return layouts | new | with_heads, meshes | new_meshes


def _by_token(heads: P) -> Layout:
    """Split the tokens of a batch and of attention, and heads as a spec of queries, keys and values says."""
    from outlay.layout.contexts import context

    tokens, calls = P("data", "context"), Layout([Rule("@attention", context("context"), optional=True)])
    values = [inside(name, heads) for name in ("queries", "keys", "values")]
    split = functools.reduce(Layout.__add__, values, calls)
    return split + Layout([("batch.**", tokens), *data_parallel().rules[1:]])


PIPELINED = ("dp", "tp", "fsdp+tp", "zero1+tp+sp", "cp", "fsdp+cp", "fsdp+tp+cp", "zero1+tp+sp+cp")
NUM_MICROBATCHES = 4
"""Microbatches of the layouts by name; a layout file says another number."""


def with_pipelines(layouts: dict[str, Layout], meshes: dict[str, str]) -> tuple[dict[str, Layout], dict[str, str]]:
    """Add layouts in which the layers are a pipeline over `stage`: `pp` for `dp`, and `pp+tp` for `tp` and so on."""
    from outlay.layout.pipelines import pipeline

    stages = Layout([("params.layers.**", pipeline("stage", microbatches=NUM_MICROBATCHES))])
    names = {name: "pp" if name == "dp" else f"pp+{name}" for name in PIPELINED}
    return (
        layouts | {new: stages + layouts[name] for name, new in names.items()},
        meshes | {new: f"stage=2,{meshes.get(name, 'data=-1')}" for name, new in names.items()},
    )


def _over_both_axes() -> Layout:
    """Split samples over `data` and `fsdp` together."""
    both = P(("data", "fsdp"))
    samples = Layout([Rule("queries", both, otherwise="replicate", optional=True)])
    # The first rule of `data_parallel` splits the batch over `data` alone.
    return samples + inside("residual", both) + Layout([("batch.**", both), *data_parallel().rules[1:]])


def megatron(config: TransformerConfig, root: str = "params") -> Layout:
    """Split heads, hidden features and the vocabulary over `model`: one all-reduce a branch and direction.

    Source: Shoeybi et al., Megatron-LM (arXiv:1909.08053), section 3.

    Args:
        config: the transformer, for which of its parts there are to split.
        root: as for `lm_layouts`.
    """
    columns = [name for name in COLUMNS if config.gated or name != "feed_forward.gate"]
    kernels = [(f"{root}.layers.{name}.kernel", P(None, None, "model")) for name in columns]
    biases = [(f"{root}.layers.{name}.bias", P(None, "model")) for name in columns if config.biases]
    rows = [(f"{root}.layers.{name}.kernel", P(None, "model")) for name in ROWS]
    head = [] if config.tied else [(f"{root}.head.kernel", P(None, "model"))]
    return Layout([*kernels, *biases, *rows, (f"{root}.embedding.embedding", P("model")), *head])


def sequence_parallel(context: str | None = None) -> Layout:
    """Split the residual stream along the sequence over `model`, and gather it at the entry of a branch.

    Source: Korthikanti et al. (2022), arXiv:2205.05198, section 4.2.2.

    Args:
        context: the axis that tokens are split over everywhere; None if each branch has all tokens of a sample.
    """
    tokens = () if context is None else (context,)
    branches = inside("branch_input", P("data", *tokens)) + inside("branch_output", P("data", *tokens))
    return inside("residual", P("data", (*tokens, "model"))) + branches


def inside(name: str, spec: P) -> Layout:
    """Place a value that the model names. The rule is optional, because a plan of the state alone lacks the value."""
    return Layout([Rule(name, spec, optional=True)])


def _kernels(strategy, root: str) -> Layout:
    """Apply a strategy to kernels and embeddings only.

    The rest are scales of norms, and biases, a ten-thousandth of the parameters: splitting them would save nothing and
    cost a collective each.
    """
    return strategy(pattern=f"{root}.**.kernel", min_size=1) + strategy(pattern=f"{root}.**.embedding", min_size=1)
