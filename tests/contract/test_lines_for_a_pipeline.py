"""How many lines of a model are of Outlay so that it can run as a pipeline: none of those that scan, one of a list."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.contract import listed_models, scanned_models
from tests.contract.listed_models import EquinoxDropoutList, EquinoxList, NnxAttentionList, NnxList
from tests.contract.scanned_models import NUM_LAYERS, NUM_TOKENS, VOCABULARY

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, NUM_TOKENS))
MOST_LINES = 5


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("library", ["nnx", "nn.scan", "equinox"])
def test_two_models_of_each_library_scan_and_name_nothing_of_outlay(library: str) -> None:
    """That each of them runs as a pipeline is in `test_pipelines.py`."""
    assert len([name for name in scanned_models.MODELS if name.startswith(library)]) == 2
    assert "outlay" not in inspect.getsource(scanned_models).lower()


# What the authors of such models write: a loop.
def nnx_list(self: Any, tokens: jax.Array) -> jax.Array:
    x = self.table(tokens)
    for layer in self.layers:
        x = layer(x)
    return self.head(x)


def nnx_attention_list(self: Any, tokens: jax.Array) -> jax.Array:
    x, mask = self.table(tokens), nnx.make_causal_mask(tokens)
    for layer in self.layers:
        x = layer(x, mask)
    return self.table.attend(x)


def equinox_list(self: Any, tokens: jax.Array) -> jax.Array:
    x = self.table[tokens]
    for layer in self.layers:
        x = x + jax.vmap(layer)(x)
    return x @ self.table.T


def equinox_dropout_list(self: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
    keys, x = jax.random.split(key, NUM_LAYERS), self.table[tokens]
    for layer, own in zip(self.layers, keys, strict=True):
        x = layer(x, key=own)
    return x @ self.table.T


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("made", "loop", "also"),
    [
        (NnxList, nnx_list, ()),
        (NnxAttentionList, nnx_attention_list, ()),
        (EquinoxList, equinox_list, ()),
        (EquinoxDropoutList, equinox_dropout_list, (jax.random.key(1),)),
    ],
)
def test_a_model_that_lists_its_layers_changes_a_few_lines(made: Any, loop: Callable[..., Any], also: Any) -> None:
    model = made(nnx.Rngs(0) if issubclass(made, nnx.Module) else jax.random.key(0))
    tokens = TOKENS[None] if issubclass(made, nnx.Module) else TOKENS
    np.testing.assert_array_equal(model(tokens, *also), loop(model, tokens, *also))
    changed = _lines_in_place_of(loop, made.__call__)
    assert 1 <= len(changed) <= MOST_LINES, changed
    assert sum("outlay" in line for line in changed) == 1
    assert "outlay" not in inspect.getsource(made).replace(inspect.getsource(made.__call__), "")


def _lines_in_place_of(loop: Callable[..., Any], call: Callable[..., Any]) -> list[str]:
    """Return the lines of a call that the loop does not have, without its head and its docstring."""
    before, after = ([line.strip() for line in inspect.getsource(each).splitlines()[1:]] for each in (loop, call))
    lines = difflib.ndiff(before, [line for line in after if not line.startswith('"""')])
    return [line[2:] for line in lines if line.startswith("+ ")]


def test_all_of_the_lists_are_counted() -> None:
    in_lines = [line for line in inspect.getsource(listed_models).splitlines() if "outlay." in line]
    assert len(in_lines) == len(listed_models.LISTED)
