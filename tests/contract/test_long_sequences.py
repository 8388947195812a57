"""Attention whose tokens are split over devices gives what JAX's own gives on one device, and so do its gradients."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

TOKENS, DIM = 32, 8
TOLERANCE = {"float32": 2e-6, "bfloat16": 3e-2}

# exchange, heads of queries and keys, causal, window, segments, dtype, mesh: every two values of exchange and another.
# The first three have each exchange and run with every change: a ring of fewer devices is less to compile.
CASES = {
    "ring of a window": ("ring", (2, 2), True, 12, True, "float32", "context=2,data=2"),
    "gathered in a window": ("gather", (4, 4), True, 5, False, "bfloat16", "context=2,model=2,data=2"),
    "all_to_all without a mask": ("all_to_all", (4, 2), False, None, True, "float32", "context=2,model=2,data=2"),
    "ring of a wide window": ("ring", (2, 2), True, 20, True, "float32", "context=4,data=2"),
    "ring of packed bfloat16": ("ring", (4, 4), True, None, True, "bfloat16", "context=2,model=2,data=2"),
    "ring": ("ring", (4, 2), True, None, False, "float32", "context=4,data=2"),
    "ring of a window of neighbours": ("ring", (4, 1), True, 14, False, "float32", "context=8"),
    "ring without a mask": ("ring", (4, 2), False, None, False, "bfloat16", "context=8"),
    "gathered": ("gather", (4, 1), True, None, True, "float32", "context=4,data=2"),
    "gathered without a mask": ("gather", (2, 2), False, None, True, "float32", "context=4"),
    "all_to_all": ("all_to_all", (4, 4), True, None, True, "float32", "context=2,model=2,data=2"),
    "all_to_all with fewer key heads": ("all_to_all", (8, 2), True, 5, False, "bfloat16", "context=4,data=2"),
    "chosen": (None, (8, 2), True, None, False, "float32", "context=4,data=2"),
}


def _inputs(heads: tuple[int, int], dtype: str, has_segments: bool) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {
        name: (4, TOKENS, number, DIM) for name, number in zip("qkv", (heads[0], heads[1], heads[1]), strict=True)
    }
    batch: dict[str, Any] = {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}
    batch["weights"] = jnp.asarray(rng.normal(size=shapes["q"]), "float32")
    if has_segments:
        batch["segments"] = jnp.asarray(np.sort(rng.integers(0, 4, (4, TOKENS)), axis=1), "int32")
    return batch


def _step(attend: Any) -> Any:
    """Return a step that gives outputs and gradients."""

    def step(state: Any, batch: Any) -> Any:
        def weighed(q: Any, k: Any, v: Any) -> Any:
            out = attend(q, k, v, batch.get("segments"))
            return (out.astype(jnp.float32) * batch["weights"]).sum(), out

        grads, out = jax.grad(weighed, (0, 1, 2), has_aux=True)(batch["q"], batch["k"], batch["v"])
        return state, {"out": out, "grads": grads}

    return step


def _plain(causal: bool, window: int | None) -> Any:
    def attend(q: Any, k: Any, v: Any, segments: Any) -> Any:
        mask = None if segments is None else segments[:, None, :, None] == segments[:, None, None]
        local = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, local_window_size=local)

    return attend


def _mesh(text: str) -> Any:
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in text.split(","))}
    return outlay.mesh(**sizes, devices=jax.devices()[: int(np.prod(list(sizes.values())))])


def _program(step: Any, batch: Any, rule: tuple[str, Any], mesh: str) -> Any:
    tokens = P("data" if "data" in mesh else None, "context")
    heads = [("batch.q", P(None, None, "model"))] if "model" in mesh else []
    layout = outlay.Layout([*heads, ("batch.**", tokens), rule]) + outlay.replicate()
    return outlay.program(step, lambda key: jnp.zeros(()), batch, layout=layout, mesh=_mesh(mesh))


def _assert_same(program: Any, batch: Any, plain: Any, tolerance: float) -> None:
    _, got = program(program.init(jax.random.key(0)), batch)
    _, want = jax.jit(_step(plain))(jnp.zeros(()), batch)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (one, other)), atol=tolerance, rtol=tolerance)


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize("name", CASES)
def test_split_tokens_give_what_one_device_gives(name: str) -> None:
    exchange, heads, causal, window, has_segments, dtype, mesh = CASES[name]
    batch = _inputs(heads, dtype, has_segments)

    def attend(q: Any, k: Any, v: Any, segments: Any) -> Any:
        return outlay.attention(q, k, v, causal=causal, window=window, segment_ids=segments)

    program = _program(_step(attend), batch, ("@attention", outlay.layout.context("context", exchange)), mesh)
    assert "test_long_sequences.py" in program.contexts
    text = program.compiled.as_text()
    if exchange == "ring":
        assert " collective-permute" in text
        assert not re.search(r" all-(gather|to-all)(-start)?\(", text)
    if exchange == "all_to_all":
        assert " all-to-all" in text
    _assert_same(program, batch, _plain(causal, window), TOLERANCE[dtype])


# exchange, key heads, dims of bias and mask (T: all tokens), whose lengths, causal, window, dtype, devices
SAID: dict[str, tuple[Any, ...]] = {
    "ring of a bias and hidden keys": ("ring", 2, "1 4 T T", "4 1 1 T", "", True, None, "float32", 4),
    "gathered bias of keys, a mask in bfloat16": ("gather", 4, "4 1 1 T", "1 1 T T", "", False, None, "bfloat16", 2),
    "all_to_all with a bias and lengths": ("all_to_all", 2, "1 4 T T", "", "q k", True, None, "float32", 2),
    "ring of lengths": ("ring", 4, "", "", "q k", False, None, "float32", 4),
    "ring of a mask in a window": ("ring", 2, "4 1 T 1", "4 4 T T", "k", True, (5, 0), "bfloat16", 4),
    "ring, a window of both sides": ("ring", 4, "1 1 T T", "4 1 T 1", "", False, (3, 4), "float32", 4),
    "gathered, causal, a wide window": ("gather", 2, "1 4 T T", "4 1 T T", "q", True, (20, 0), "float32", 4),
    "all_to_all in a window": ("all_to_all", 1, "4 4 1 T", "1 1 T T", "", True, (7, 0), "float32", 2),
    "ring of keys of another length": ("ring", 4, "1 4 T T", "", "", True, None, "float32", 2),
    "chosen": (None, 2, "1 4 T T", "", "", True, None, "float32", 4),
}


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize("name", SAID)
def test_masks_biases_and_lengths_of_split_tokens(name: str) -> None:
    """JAX's own function is called, of which the layout's rule knows; the bias is differentiated."""
    exchange, key_heads, bias, mask, lengths, causal, window, dtype, num = SAID[name]
    batch, rng = _inputs((4, key_heads), dtype, has_segments=False), np.random.default_rng(2)
    if "another length" in name:
        batch |= {key: batch[key][:, : TOKENS // 2] for key in "kv"}
    long = {"q": TOKENS, "k": batch["k"].shape[1]}

    def shape(dims: str) -> tuple[int, ...]:
        sizes = [TOKENS if dim == "T" else int(dim) for dim in dims.split()]
        return (*sizes[:3], long["k"] if sizes[3] == TOKENS else sizes[3])

    if bias:
        batch["bias"] = jnp.asarray(rng.normal(size=shape(bias)), dtype)
    if mask:
        seen = rng.random(shape(mask)) < 0.6
        seen[:, :, 3:4] = False  # where each query has a row of its own, this one attends to nothing
        batch["mask"] = jnp.asarray(seen)
    batch |= {f"length_{which}": jnp.asarray(rng.integers(0, long[which], 4), "int32") for which in lengths.split()}

    def step(state: Any, batch: Any) -> Any:
        def weighed(tokens: Any) -> Any:
            out = jax.nn.dot_product_attention(
                *(tokens[key] for key in "qkv"),
                bias=tokens.get("bias"),
                mask=batch.get("mask"),
                query_seq_lengths=batch.get("length_q"),
                key_value_seq_lengths=batch.get("length_k"),
                is_causal=causal,
                local_window_size=window,
            )
            return (out.astype(jnp.float32) * batch["weights"]).sum(), out

        grads, out = jax.grad(weighed, has_aux=True)(
            {key: batch[key] for key in ("q", "k", "v", "bias") if key in batch}
        )
        return state, {"out": out, "grads": grads}

    rows = [(f"batch.{key}", P(None, "context")) for key in ("q", "k", "v", "weights")]
    rule = ("@dot_product_attention", outlay.layout.context("context", exchange))
    layout = outlay.Layout([*rows, ("batch.**", P()), rule]) + outlay.replicate()
    program = outlay.program(step, lambda key: jnp.zeros(()), batch, layout=layout, mesh=_mesh(f"context={num}"))
    _, got = program(program.init(jax.random.key(0)), batch)
    _, want = jax.jit(step)(jnp.zeros(()), batch)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        both = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(*both, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.any_jax
def test_a_mask_and_a_bias_computed_from_positions_are_nowhere_whole() -> None:
    """A device computes the rows of its own queries, and holds no square of all tokens."""
    batch = _inputs((2, 2), "float32", has_segments=False)

    def step(state: Any, batch: Any) -> Any:
        def mixed(q: Any) -> Any:
            ahead = jnp.arange(TOKENS)[None] - jnp.arange(TOKENS)[:, None]
            near, slopes = jnp.abs(ahead) % 5 < 3, -jnp.abs(ahead)[None] * jnp.asarray([0.1, 0.2])[:, None, None]
            out = jax.nn.dot_product_attention(q, batch["k"], batch["v"], bias=slopes[None], mask=near[None, None])
            return (out * batch["weights"]).sum()

        return state, jax.grad(mixed)(batch["q"])

    program = _program(step, batch, ("@dot_product_attention", outlay.layout.context("context", "ring")), "context=4")
    assert not re.search(rf"\[(\d+,)*{TOKENS},{TOKENS}\]", program.compiled.as_text())
    _, got = program(program.init(jax.random.key(0)), batch)
    np.testing.assert_allclose(got, jax.jit(step)(jnp.zeros(()), batch)[1], atol=2e-6)


@pytest.mark.any_jax
@pytest.mark.parametrize("name", ["Linen", "NNX", "Equinox"])
def test_modules_of_libraries_are_split_unchanged(name: str) -> None:
    """Each with a causal mask, as its own library makes it, and no edit of the model."""
    x = np.random.default_rng(0).normal(size=(2, TOKENS, 16)).astype(np.float32)
    seen = np.tril(np.ones((TOKENS, TOKENS), bool))
    if name == "Linen":
        linen = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1, deterministic=True)
        params = linen.init(jax.random.key(0), x)

        def attend(x: Any) -> Any:
            return linen.apply(params, x, mask=nn.make_causal_mask(x[..., 0]))

    elif name == "NNX":
        module = nnx.MultiHeadAttention(2, 16, decode=False, rngs=nnx.Rngs(0))

        def attend(x: Any) -> Any:
            return module(x, mask=nnx.make_causal_mask(x[..., 0]))

    else:
        equinox = eqx.nn.MultiheadAttention(2, 16, key=jax.random.key(0))

        def attend(x: Any) -> Any:
            return jax.vmap(lambda x: equinox(x, x, x, seen))(x)

    rules = [("batch", P(None, "context")), ("@dot_product_attention", outlay.layout.context("context", "ring"))]
    program = outlay.program(
        lambda state, batch: (state, jax.grad(lambda x: (attend(x) ** 2).sum())(batch)),
        lambda key: jnp.zeros(()),
        x,
        layout=outlay.Layout(rules) + outlay.replicate(),
        mesh=_mesh("context=2"),
    )
    assert "a ring over context=2" in program.contexts
    _, got = program(program.init(jax.random.key(0)), x)
    np.testing.assert_allclose(got, jax.grad(lambda x: (attend(x) ** 2).sum())(x), atol=1e-5, rtol=1e-5)


@pytest.mark.any_jax
def test_a_call_of_jax_is_split_by_the_name_of_its_function_or_by_its_line() -> None:
    batch = _inputs((2, 2), "float32", has_segments=False)

    def step(state: Any, batch: Any) -> Any:
        one = jax.vmap(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
        return state, one(batch["q"], batch["k"], batch["v"])

    line = step.__code__.co_firstlineno + 1
    for pattern in (f"@test_long_sequences.py:{line}", "@dot_product_attention"):
        program = _program(step, batch, (pattern, outlay.layout.context("context", "ring")), "context=2")
        assert f"test_long_sequences.py:{line}: a ring over context=2, 1 hop, halves exchanged" in program.contexts
    _, got = program(program.init(jax.random.key(0)), batch)
    np.testing.assert_allclose(got, jax.jit(step)(jnp.zeros(()), batch)[1], atol=2e-6)


@pytest.mark.any_jax
@pytest.mark.parametrize(
    "axes",
    [
        pytest.param("data", id="over data"),
        # over data, above, has the same exchange; test_layouts.py has FSDP over two axes
        pytest.param(("data", "context"), id="over data and context", marks=pytest.mark.thorough),
    ],
)
def test_a_model_is_trained_as_on_one_device_in_microbatches_too(axes: str | tuple[str, ...]) -> None:
    """A rule changes neither the model nor what it learns, wherever parameters lie, and verify proves it."""

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        heads = [(batch @ params[name]).reshape(*batch.shape[:2], -1, DIM) for name in "qkv"]
        y = outlay.attention(*heads, causal=True).reshape(*batch.shape[:2], -1) @ params["out"]
        return (y**2).mean((1, 2)), {}

    def init_params(key: Any) -> Any:
        return {
            name: jax.random.normal(one, (16, 16)) / 4
            for name, one in zip(("q", "k", "v", "out"), jax.random.split(key, 4), strict=True)
        }

    batch = np.random.default_rng(0).normal(size=(4, TOKENS, 16)).astype(np.float32)
    optimizer = optax.sgd(0.1)
    layout = outlay.Layout([("@attention", outlay.layout.context("context", "ring")), ("batch", P("data", "context"))])
    step = outlay.train_step(loss, optimizer, accumulate=2)
    program = outlay.program(
        step,
        outlay.init_state(init_params, optimizer),
        batch,
        layout=layout + outlay.fsdp(axes, min_size=1),
        mesh=outlay.mesh(data=2, context=2, devices=jax.devices()[:4]),
    )
    assert program.plan["params.q"].local_shape == ((8, 16) if axes == "data" else (4, 16))
    outlay.verify(program, batches=[batch], steps=1).raise_if_different()
