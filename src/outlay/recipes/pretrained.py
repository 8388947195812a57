"""Weights of Hugging Face's models for the transformer recipes: mapped by name, checked, and read into the state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.error_types import RecipeError
from outlay.core.input_file import read_text
from outlay.core.paths import flatten_paths
from outlay.models.transformer.adapters import quantise
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.layer import EPSILON
from outlay.program.program import Program
from outlay.train.checkpoint.read_weights import read_weights

_PROJECTIONS = {
    "self_attn.q_proj": ("attention.query", (1, 0, 0)),
    "self_attn.k_proj": ("attention.key", (1, 0, 0)),
    "self_attn.v_proj": ("attention.value", (1, 0, 0)),
    "self_attn.o_proj": ("attention.output", (1, 1, 0)),
    "mlp.gate_proj": ("feed_forward.gate", (1, 0)),
    "mlp.up_proj": ("feed_forward.up", (1, 0)),
    "mlp.down_proj": ("feed_forward.down", (1, 0)),
}
"""PyTorch's kernels are (outputs, inputs); a dim that is given twice here is heads and their features."""

_MAY_BE_NULL = ("head_dim", "num_key_value_heads")  # Hugging Face then computes them from the width and the heads


def pretrained(files: str, config: TransformerConfig, root: str) -> Callable[[Program, Any], Any]:
    """Return a function for `Recipe.begin` that reads a model's weights into a new state, each device its slices.

    If projections are 8-bit integers, the floats are read to the devices of the integers, and rounded there.

    Args:
        files: a `.safetensors` file, or the folder of a model.
        config: the model.
        root: what holds its parameters in the state: `params` or `model_state`.

    Raises:
        RecipeError: there are no such files, or they belong to another model; every difference is listed.
    """
    path = Path(files)
    if not path.exists():
        raise RecipeError(f"there is no {path}\n  fix: --from with a .safetensors file, or the folder of a model")
    problems = list(_problems(path, config))
    if problems:
        raise RecipeError("\n  ".join([f"{path} belongs to another model than was asked for:", *problems]))
    names = llama_names(config, root)

    def begin(program: Program, state: Any) -> Any:
        model = getattr(state, root)
        if not config.is_int8:
            return read_weights(files, state, names)
        scales = {_scale_of(path) for path, leaf in flatten_paths(model)[0] if leaf.dtype == jnp.int8}
        only = [f"{root}.{path}" for path, _ in flatten_paths(model)[0] if path not in scales]
        floats = read_weights(files, {root: _as_floats(model, config)}, names, only=only)[root]
        return dataclasses.replace(state, **{root: _as_integers(floats, model)})

    return begin


def _problems(path: Path, config: TransformerConfig):
    """List how files of weights differ from a model, as far as can be seen without opening the weights."""
    try:
        llama_names(config)
    except ValueError as error:
        yield f"{error}; for others give the names yourself: outlay.train.read_weights(files, state, names)"
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if not beside.is_file():
        return
    try:
        settings = json.loads(read_text(beside))
        yield from (f"{beside}: {line}" for line in differences(settings, config))
    except (OSError, ValueError, TypeError) as error:
        yield f"{beside} cannot be read: {error}"


def llama_names(
    config: TransformerConfig, root: str = "params"
) -> list[tuple[str, str | None] | tuple[str, str, tuple[int, ...]]]:
    """Return the rules of `outlay.train.read_weights` for models like Llama: Llama 2 and 3, Mistral, TinyLlama, SmolLM.

    Args:
        config: the model.
        root: what holds its parameters in the state.

    Raises:
        ValueError: the model is of another kind: it has biases, learned positions, or no gate.

    Example:
        >>> from outlay.models.transformer.published import MODELS
        >>> llama_names(MODELS["llama3-8b"].config)[0]
        ('model.embed_tokens.weight', 'params.embedding.embedding')
    """
    if config.biases or config.positions != "rotary" or config.norm != "rms" or not config.gated:
        raise ValueError("it is not like Llama: rotary positions, RMS norms, a gate and no biases")
    layer = f"{root}.layers"
    return [
        ("model.embed_tokens.weight", f"{root}.embedding.embedding"),
        *(
            (f"model.layers.*.{name}.weight", f"{layer}.{path}.kernel", dims)
            for name, (path, dims) in _PROJECTIONS.items()
        ),
        ("model.layers.*.input_layernorm.weight", f"{layer}.attention_norm.scale"),
        ("model.layers.*.post_attention_layernorm.weight", f"{layer}.feed_forward_norm.scale"),
        ("model.norm.weight", f"{root}.norm.scale"),
        *([] if config.tied else [("lm_head.weight", f"{root}.head.kernel", (1, 0))]),
    ]


def differences(settings: Mapping[str, Any], config: TransformerConfig) -> list[str]:
    """List the differences between a model's `config.json` and a config of Outlay, in words.

    Args:
        settings: the file, read.
        config: the model that the weights are meant for.

    Example:
        >>> from outlay.models.transformer.published import MODELS
        >>> differences({"hidden_size": 2048, "rms_norm_eps": 1e-05}, MODELS["llama3-8b"].config)
        ['hidden_size is 2048 there, width is 4096 here']
    """
    by_name = {
        "vocab_size": ("vocabulary", config.vocabulary),
        "hidden_size": ("width", config.width),
        "num_hidden_layers": ("layers", config.num_layers),
        "num_attention_heads": ("heads", config.num_heads),
        "num_key_value_heads": ("kv_heads", config.num_kv_heads),
        "head_dim": ("head_dim", config.head_dim),
        "intermediate_size": ("hidden", config.hidden),
        "tie_word_embeddings": ("tied", config.tied),
        "rope_theta": ("rotary_base", config.rotary_base),
        "rms_norm_eps": ("the norms' epsilon", EPSILON),
        "hidden_act": ("activation", config.activation),
        "rope_scaling": ("scaling of rotary positions", None),
        "rope_type": ("kind of rotary positions", "default"),
        "sliding_window": ("window", config.window),
    }
    # Newer files keep the settings of positions in a table of their own.
    settings = {**settings, **(settings.get("rope_parameters") or {})}
    return [
        f"{name} is {settings[name]} there, {field} is {value} here"
        for name, (field, value) in by_name.items()
        if name in settings and settings[name] != value and not (name in _MAY_BE_NULL and settings[name] is None)
    ]


def _as_floats(model: Any, config: TransformerConfig) -> Any:
    """Allocate the float weights of a model whose projections are integers, with the integers' shardings."""
    named, structure = flatten_paths(model)
    shardings = structure.unflatten([leaf.sharding for _, leaf in named])
    shapes = [(leaf.shape, config.param_dtype if leaf.dtype == jnp.int8 else leaf.dtype) for _, leaf in named]
    # Compiled with its shardings, it makes each device's slices there: no device need hold a whole leaf.
    make = jax.jit(lambda: structure.unflatten([jnp.zeros(*shape) for shape in shapes]), out_shardings=shardings)
    return make()


def _as_integers(floats: Any, model: Any) -> Any:
    """Round the float projections of a model to integers, each where it is."""
    named, structure = flatten_paths(model)
    shardings = structure.unflatten([leaf.sharding for _, leaf in named])

    def rounded(floats: Any) -> Any:
        leaves = dict(flatten_paths(floats)[0])
        for path, leaf in named:
            if leaf.dtype == jnp.int8:
                # (layers, *inputs, *outputs): of the scale's dims the first is the layers too, the others outputs
                scale = _scale_of(path)
                num_inputs = leaf.ndim - dict(named)[scale].ndim
                leaves[path], leaves[scale] = jax.vmap(lambda kernel, n=num_inputs: quantise(kernel, n))(leaves[path])
        return structure.unflatten(list(leaves.values()))

    return jax.jit(rounded, out_shardings=shardings)(floats)


def _scale_of(kernel: str) -> str:
    return kernel.removesuffix("kernel") + "scale"
