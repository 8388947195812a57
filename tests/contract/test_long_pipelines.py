"""A pipeline whose stages split the tokens of their microbatches too: losses and gradients are those of one device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_rank_promotion("allow"):
        yield


TOKENS, WIDTH, DIM, LAYERS, SAMPLES, VOCABULARY = 16, 8, 4, 4, 8, 16
TOLERANCE = {"float32": 2e-6, "bfloat16": 3e-2}
MESH = {"stage": 2, "data": 2, "context": 2}


@dataclass(frozen=True)
class Case:
    """A layout, what attention does, and how the model and its step are written."""

    exchange: Any
    key_heads: int = 2
    causal: bool = True
    window: int | None = None
    has_segments: bool = False
    dtype: str = "float32"
    mesh: Any = None
    fsdp: bool = False
    repeats: int = 1
    accumulate: int = 1
    is_list: bool = False
    of_jax: bool = False
    remat: bool = False
    dropout: bool = False


# Each value once at least; those before the line run with every change, one on each JAX.
CASES = {
    "ring of packed layers in a scan": Case("ring", key_heads=1, has_segments=True, remat=True, dropout=True),
    "all_to_all of listed layers with FSDP": Case("all_to_all", is_list=True, fsdp=True, accumulate=2),
    # ---
    "gathered": Case("gather", key_heads=1, remat=True),
    "ring of a window": Case("ring", window=5, mesh={"stage": 2, "context": 4}),
    "ring of a wide window": Case("ring", window=12, fsdp=True, accumulate=2),
    "gathered in a window": Case("gather", window=5, has_segments=True, mesh={"stage": 2, "context": 4}),
    "ring of jax.nn": Case("ring", of_jax=True, repeats=2),
    "all_to_all of jax.nn": Case("all_to_all", of_jax=True, window=5, dropout=True, remat=True),
    "ring of a mask": Case("ring", of_jax=True, has_segments=True, remat=True),
    "all_to_all of a mask": Case("all_to_all", of_jax=True, has_segments=True),
    "ring without a mask": Case("ring", causal=False, is_list=True, mesh={"stage": 4, "context": 2}),
    "ring of bfloat16": Case("ring", dtype="bfloat16", accumulate=2),
    "gathered bfloat16": Case("gather", dtype="bfloat16", causal=False, fsdp=True),
    "all_to_all of bfloat16": Case("all_to_all", dtype="bfloat16", key_heads=1, has_segments=True, repeats=2),
}


def _init(case: Case) -> Any:
    def init(key: jax.Array) -> Any:
        def normal(key: jax.Array, *shape: int) -> jax.Array:
            return (jax.random.normal(key, shape) / np.sqrt(shape[-2])).astype(case.dtype)

        outputs = {"q": 2 * DIM, "k": case.key_heads * DIM, "v": case.key_heads * DIM}
        keys = jax.random.split(key, 5)
        layers = {name: normal(one, LAYERS, WIDTH, outputs[name]) for one, name in zip(keys, "qkv", strict=False)}
        layers["out"] = normal(keys[3], LAYERS, 2 * DIM, WIDTH)
        each = [jax.tree.map(lambda x, layer=layer: x[layer], layers) for layer in range(LAYERS)]
        return {"table": normal(keys[4], VOCABULARY, WIDTH), "layers": each if case.is_list else layers}

    return init


def _loss(case: Case, attend: Any) -> Any:
    def layer(weights: Any, x: jax.Array, segments: Any, number: Any, ids: jax.Array) -> jax.Array:
        heads = [(x @ weights[name]).reshape(*x.shape[:2], -1, DIM) for name in "qkv"]
        mixed = attend(*heads, segments).reshape(*x.shape[:2], -1) @ weights["out"]
        if case.dropout:
            keys = jax.vmap(lambda one: jax.random.fold_in(jax.random.fold_in(jax.random.key(3), one), number))(ids)
            is_kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, mixed.shape[1:]))(keys)
            mixed = jnp.where(is_kept, mixed / 0.8, 0.0)
        return x + mixed

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        run = jax.checkpoint(layer) if case.remat else layer
        x, of_all = params["table"][batch["tokens"]], (batch.get("segments"), batch["ids"])

        def one(weights: Any, x: jax.Array, number: Any = 0) -> jax.Array:
            return run(weights, x, of_all[0], number, of_all[1])

        if case.is_list:
            x = outlay.layers(params["layers"], x, run=one)
        else:
            given = (params["layers"], jnp.arange(LAYERS))
            x, _ = jax.lax.scan(lambda x, each: (one(each[0], x, each[1]), None), x, given)
        logits = (x @ params["table"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean(-1), {}

    return loss


def _plain(case: Case) -> Any:
    def attend(q: Any, k: Any, v: Any, segments: Any) -> Any:
        mask = None if segments is None else segments[:, None, :, None] == segments[:, None, None]
        local = None if case.window is None else (case.window - 1, 0)
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=case.causal, local_window_size=local)

    return attend


def _attend(case: Case) -> Any:
    if case.of_jax:
        return _plain(case)
    return lambda q, k, v, of: outlay.attention(q, k, v, causal=case.causal, window=case.window, segment_ids=of)


def _batch(case: Case) -> Any:
    rng = np.random.default_rng(0)
    batch = {"tokens": rng.integers(0, VOCABULARY, (SAMPLES, TOKENS)).astype(np.int32)}
    if case.has_segments:
        batch["segments"] = np.sort(rng.integers(0, 3, (SAMPLES, TOKENS)), axis=1).astype(np.int32)
    return batch | {"ids": np.arange(SAMPLES, dtype=np.int32)}


def _program(case: Case, batch: Any) -> Any:
    mesh, optimizer = case.mesh or MESH, optax.sgd(0.1, momentum=0.9)
    data = "data" if "data" in mesh else None
    pattern = "params.layers.*.*" if case.is_list else "params.layers.*"
    stages = outlay.layout.pipeline("stage", microbatches=4 if mesh["stage"] == 4 else 2, repeats=case.repeats)
    tokens = outlay.layout.context("context", case.exchange)
    rules = [
        (pattern, stages),
        ("@dot_product_attention" if case.of_jax else "@attention", tokens),
        *((f"batch.{name}", P(data, "context") if x.ndim == 2 else P(data)) for name, x in batch.items()),
    ]
    layout = outlay.Layout(rules) + (outlay.fsdp(("data", "context"), min_size=1) if case.fsdp else outlay.replicate())
    devices = jax.devices()[: int(np.prod(list(mesh.values())))]
    return outlay.program(
        outlay.train_step(_loss(case, _attend(case)), optimizer, accumulate=case.accumulate),
        outlay.init_state(_init(case), optimizer),
        batch,
        layout=layout,
        mesh=outlay.mesh(**mesh, devices=devices),
    )


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.parametrize("name", CASES)
def test_stages_that_split_tokens_give_what_one_device_gives(name: str) -> None:
    case = CASES[name]
    batch = _batch(case)
    program = _program(case, batch)
    assert program.passes[:2] == ("split_attention", "pipelining")
    assert "through" in program.pipelines
    assert "context=" in program.contexts
    _assert_exchanges(case, program.compiled.as_text())

    _assert_same(program, batch, _loss(case, _plain(case)), TOLERANCE[case.dtype])


class Block(nn.Module):
    """A layer for one sample, written without a thought of devices."""

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Compute the layer."""
        y = nn.LayerNorm()(x)
        heads = [nn.DenseGeneral((2, DIM), name=name)(y) for name in ("query", "key", "value")]
        mixed = jax.nn.dot_product_attention(*heads, is_causal=True)
        return x + nn.DenseGeneral(WIDTH, axis=(-2, -1))(mixed), None


class Model(nn.Module):
    """Such layers under remat and scan."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        x = nn.Embed(VOCABULARY, WIDTH)(tokens)
        axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": LAYERS}
        x, _ = nn.scan(nn.remat(Block), **axes)(name="blocks")(x)
        return nn.Dense(VOCABULARY)(x)


@pytest.mark.any_jax
@pytest.mark.thorough  # the other models have each exchange; that a Linen model is a pipeline, test_pipelines.py has
@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
def test_a_linen_model_of_one_sample_is_trained_as_it_is(exchange: Any) -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        logits = jax.vmap(lambda tokens: Model().apply(params, tokens))(batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean(-1), {}

    optimizer, batch = optax.sgd(0.1, momentum=0.9), {"tokens": _batch(Case(exchange))["tokens"]}
    rules = [
        ("params.params.blocks.**", outlay.layout.pipeline("stage", microbatches=2)),
        ("@dot_product_attention", outlay.layout.context("context", exchange)),
        ("batch.**", P("data", "context")),
    ]
    program = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: Model().init(key, jnp.zeros(TOKENS, jnp.int32)), optimizer),
        batch,
        layout=outlay.Layout(rules) + outlay.replicate(),
        mesh=outlay.mesh(**MESH),
    )
    _assert_exchanges(Case(exchange), program.compiled.as_text())
    _assert_same(program, batch, loss, TOLERANCE["float32"])


def _assert_same(program: Any, batch: Any, loss: Any, tolerance: float) -> None:
    """Assert that a step's loss and gradients are those of one device, by plain JAX."""
    state = program.init(jax.random.key(0))
    params = jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, state.params))
    state, metrics = program(state, batch)
    expected, grads = jax.jit(jax.value_and_grad(lambda params: loss(params, batch, None)[0].mean()))(params)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=tolerance)
    # The momentum of the first step is the gradient.
    momentum = next(each for each in jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "trace")))
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads))
    for got, want in zip(jax.tree.leaves(momentum.trace), jax.tree.leaves(grads), strict=True):
        assert got.dtype == want.dtype
        pair = (np.asarray(x, np.float32) for x in (got, want))
        np.testing.assert_allclose(*pair, rtol=0, atol=tolerance * largest)


def _assert_exchanges(case: Case, text: str) -> None:
    """Assert that what moves inside of loops is what a pipeline and the exchange move, and holds a device's tokens."""
    lines = [line for line in text.splitlines() if re.search(r" (all-\w[\w-]*|collective-permute)(-start)?\(", line)]
    inside = [line for line in lines if "while/body" in line.partition("jvp(")[2]]  # of ticks, not of accumulation
    num = (case.mesh or MESH)["context"]
    moved = [line for line in inside if f",{TOKENS // num},{WIDTH}]" in line and " collective-permute" in line]
    assert len(moved) >= 2, "stages send the tokens of a device on, forward and back"
    assert not [line for line in lines if " collective-permute" in line and f",{TOKENS},{WIDTH}]" in line]
    if not case.fsdp and case.exchange != "gather":
        # Nor masks that are made of segments; only these, and a mask that is given, of which heads need all rows.
        small = ("= s32[", "= pred[") if case.of_jax else ("= s32[",)
        assert not [line for line in inside if " all-gather" in line and not any(each in line for each in small)]
    assert any(" all-to-all" in line for line in inside) == (case.exchange == "all_to_all")
