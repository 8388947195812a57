"""Weights of Hugging Face's models for the transformer recipes: checked, and read to where the state lives."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.error_types import RecipeError
from outlay.core.paths import flatten_paths
from outlay.models.transformer.adapters import quantise
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.hugging_face import differences, llama_names
from outlay.program.program import Program
from outlay.train.checkpoint.read_weights import read_weights


def pretrained(files: str, config: TransformerConfig, root: str) -> Callable[[Program, Any], Any]:
    """For `Recipe.begin`: reads the weights of a model into a new state, each device its slices.

    Where projections are 8-bit integers the floats are read to where the integers live, and rounded there.

    Args:
        files: a `.safetensors` file, or the folder of a model.
        config: the model.
        root: what holds its parameters in the state: `params` or `model_state`.

    Raises:
        RecipeError: there are no such files, or they are of another model; every difference is listed.
    """
    path = Path(files)
    if not path.exists():
        raise RecipeError(f"there is no {path}\n  fix: --from with a .safetensors file, or the folder of a model")
    problems = list(_problems(path, config))
    if problems:
        raise RecipeError("\n  ".join([f"{path} is of another model than was asked for:", *problems]))
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
    """What keeps the weights from being those of a model, as far as can be told before they are opened."""
    try:
        llama_names(config)
    except ValueError as error:
        yield f"{error}; for others give the names yourself: outlay.read_weights(files, state, names)"
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if not beside.is_file():
        return
    try:
        theirs = json.loads(beside.read_text(encoding="utf-8"))
        yield from (f"{beside}: {line}" for line in differences(theirs, config))
    except (OSError, ValueError, TypeError) as error:
        yield f"{beside} cannot be read: {error}"


def _as_floats(model: Any, config: TransformerConfig) -> Any:
    """Room for the floats of a model whose projections are integers, where they live."""
    named, structure = flatten_paths(model)
    places = structure.unflatten([leaf.sharding for _, leaf in named])
    shapes = [(leaf.shape, config.param_dtype if leaf.dtype == jnp.int8 else leaf.dtype) for _, leaf in named]
    make = jax.jit(lambda: structure.unflatten([jnp.zeros(*shape) for shape in shapes]), out_shardings=places)
    return make()


def _scale_of(kernel: str) -> str:
    """The path of the scale of a kernel."""
    return kernel.removesuffix("kernel") + "scale"


def _as_integers(floats: Any, model: Any) -> Any:
    """A model whose projections are integers, of one that has floats in their places."""
    named, structure = flatten_paths(model)
    places = structure.unflatten([leaf.sharding for _, leaf in named])

    def rounded(floats: Any) -> Any:
        leaves = dict(flatten_paths(floats)[0])
        for path, leaf in named:
            if leaf.dtype == jnp.int8:
                # (layers, *inputs, *outputs): of the scale's dims the first is the layers too, the others outputs
                scale = _scale_of(path)
                num_inputs = leaf.ndim - dict(named)[scale].ndim
                leaves[path], leaves[scale] = jax.vmap(lambda kernel, n=num_inputs: quantise(kernel, n))(leaves[path])
        return structure.unflatten(list(leaves.values()))

    return jax.jit(rounded, out_shardings=places)(floats)
