"""The models of the contract tests: small, of every kind of operation. A new model is a new row of `MODELS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import outlay
from outlay.models.classifiers import dropout


@dataclass(frozen=True)
class SmallModel:
    """A model on one device.

    Attributes:
        name: what the test is called.
        shapes: the shape of every parameter, by name.
        predict: `(params, x, keys)` to predictions; keys are one per sample, or None for no dropout.
        x, y: the batch and what the predictions should be.
        columns, rows: what tensor parallelism splits by outputs and by inputs.
        specs: rules that a user would write by hand, on a mesh of data=4 and model=2.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    predict: Callable[[Any, Any, Any], Any]
    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    specs: list[tuple[str, P]] = field(default_factory=list)

    def params(self) -> dict[str, np.ndarray]:
        """Fixed parameters, scaled so that every activation stays of order one."""
        rng = np.random.default_rng(1)
        return {
            name: (rng.normal(size=shape) / math.sqrt(math.prod(shape[:-1]))).astype(np.float32)
            for name, shape in self.shapes.items()
        }

    def loss(self, params: Any, batch: Any) -> tuple[Any, Any]:
        """Mean squared error and the predictions."""
        predictions = self.predict(params, batch["x"], None)
        return jnp.mean((predictions - batch["y"]) ** 2), predictions

    def losses(self, params: Any, batch: Any, keys: Any) -> tuple[Any, Any]:
        """The squared error of each sample, as `outlay.train_step` takes it, and a metric."""
        errors = self.predict(params, batch["x"], keys) - batch["y"]
        dims = tuple(range(1, errors.ndim))
        return jnp.mean(errors**2, dims), {"largest": jnp.max(jnp.abs(errors), dims)}

    def tensor_parallel(self) -> outlay.Layout:
        """Its layers split over `model`."""
        return outlay.tensor_parallel("model", columns=self.columns, rows=self.rows)


def _mlp(p: Any, x: Any, keys: Any) -> Any:
    hidden = dropout(jnp.tanh(x @ p["up"] + p["up_bias"][None]), keys, 0.25)
    return hidden @ p["down"] + p["down_bias"][None]


def _convolution(p: Any, x: Any, keys: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=layout)
    return jnp.tanh(hidden).mean(axis=(1, 2)) @ p["out"]


def _attention(p: Any, x: Any, keys: Any) -> Any:
    query, key, value = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in ("query", "key", "value"))
    weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", query, key) / math.sqrt(query.shape[-1]), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, value)
    return x + jnp.einsum("bthk,hkd->btd", mixed, p["out"])


def _recurrent(p: Any, x: Any, keys: Any) -> Any:
    def cell(hidden: Any, now: Any) -> tuple[Any, None]:
        return jnp.tanh(now @ p["input"] + hidden @ p["recurrent"]), None

    hidden, _ = jax.lax.scan(cell, jnp.zeros((x.shape[0], p["recurrent"].shape[0])), jnp.swapaxes(x, 0, 1))
    return hidden @ p["out"]


def _tied_embedding(p: Any, tokens: Any, keys: Any) -> Any:
    hidden = jnp.tanh(p["embedding"][tokens] @ p["mix"])
    return hidden @ p["embedding"].T


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(np.float32)


MODELS = [
    SmallModel(
        name="mlp",
        shapes={"up": (8, 16), "up_bias": (16,), "down": (16, 8), "down_bias": (8,)},
        predict=_mlp,
        x=_random(16, 8),
        y=_random(16, 8),
        columns=("params.up*",),
        rows=("params.down",),
        specs=[("params.up", P("data", "model")), ("params.down", P("model", "data"))],
    ),
    SmallModel(
        name="convolution",
        shapes={"kernel": (3, 3, 8, 16), "out": (16, 8)},
        predict=_convolution,
        x=_random(8, 6, 6, 8),
        y=_random(8, 8),
        columns=("params.kernel",),
        rows=("params.out",),
        specs=[("params.kernel", P(None, None, "model", "data")), ("params.out", P(("data", "model")))],
    ),
    SmallModel(
        name="attention",
        shapes={"query": (16, 4, 8), "key": (16, 4, 8), "value": (16, 4, 8), "out": (4, 8, 16)},
        predict=_attention,
        x=_random(8, 8, 16),
        y=_random(8, 8, 16),
        columns=("params.query", "params.key", "params.value"),
        rows=("params.out",),
        specs=[("params.query", P("data", "model")), ("params.out", P("model", None, "data"))],
    ),
    SmallModel(
        name="recurrent",
        shapes={"input": (8, 16), "recurrent": (16, 16), "out": (16, 8)},
        predict=_recurrent,
        x=_random(8, 5, 8),
        y=_random(8, 8),
        columns=("params.input", "params.recurrent"),
        rows=("params.out",),
        specs=[("params.recurrent", P("data", "model")), ("params.input", P(None, "model"))],
    ),
    SmallModel(
        name="tied_embedding",
        shapes={"embedding": (32, 16), "mix": (16, 16)},
        predict=_tied_embedding,
        x=np.random.default_rng(0).integers(0, 32, size=(8, 5)),
        y=_random(8, 5, 32),
        columns=("params.mix",),
        rows=("params.embedding",),
        specs=[("params.embedding", P(("model", "data"))), ("params.mix", P(None, "data"))],
    ),
]
