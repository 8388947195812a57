"""Which calls of attention a rule splits, who computes how much, and what is refused, with its line."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.attention_calls import AttentionCall
from outlay.core.error_types import LayoutError, ProgramError
from outlay.layout.contexts import context
from outlay.models.attention.blockwise import Mask
from outlay.program.contexts.context_exchanges import key_heads_sent, numbers_sent, ring_of
from outlay.program.contexts.ring_chunks import Chunks, Ring


def _shapes(tokens: int = 32, heads: tuple[int, int] = (4, 4), keys: int | None = None) -> dict[str, Any]:
    of = {"q": (tokens, heads[0]), "k": (keys or tokens, heads[1]), "v": (keys or tokens, heads[1])}
    return {name: jnp.ones((2, length, number, 4)) for name, (length, number) in of.items()}


def _program(attend: Any, batch: Any, *rules: Any, mode: Any = "auto", **sizes: int) -> Any:
    layout = outlay.Layout([*(rules or [("@attention", context("context"))]), ("batch.**", P())]) + outlay.replicate()
    mesh = outlay.mesh(
        **(sizes or {"context": 4}), devices=jax.devices()[: int(np.prod([*(sizes or {"c": 4}).values()]))]
    )

    def step(state: Any, batch: Any) -> Any:
        return state, attend(batch["q"], batch["k"], batch["v"])

    return outlay.program(step, lambda key: jnp.zeros(()), batch, layout=layout, mesh=mesh, mode=mode)


@pytest.mark.parametrize(("num", "window"), [(2, None), (4, None), (8, None), (8, 700)])
def test_every_device_has_the_same_causal_work(num: int, window: int | None) -> None:
    ring = Ring("context", num, Mask(True, window), 1.0, lambda x, spec: x)
    positions = jnp.arange(1024)[None]
    heads = jnp.zeros((1, 1024, 1, 4))
    chunks = Chunks(ring, heads, heads, None).split(positions)
    of_devices = np.concatenate([np.asarray(chunk)[:, 0] for chunk in chunks], axis=1)
    assert sorted(of_devices.ravel()) == list(range(1024))
    seen = np.minimum(of_devices + 1, window or 1024).sum(axis=1)
    assert seen.max() <= 1.02 * seen.mean() or window
    assert seen.max() <= 1.2 * seen.mean()


def test_devices_exchange_halves_and_undo_it() -> None:
    ring = Ring("context", 4, Mask(True), 1.0, lambda x, spec: x)
    x = jnp.arange(64.0).reshape(1, 32, 1, 2)
    turns = Chunks(ring, x, x, None)
    assert np.asarray(turns.split(x)[1])[0, 0, 0, 0, 0] == 2 * 28  # device 0 gets the last chunk of device 3
    np.testing.assert_array_equal(turns.joined(turns.split(x)), x)


@pytest.mark.parametrize(
    ("heads", "key_heads", "window", "chosen"),
    [(8, 8, None, "all_to_all"), (6, 6, None, "ring"), (30, 2, None, "gather"), (6, 6, 9, "ring")],
)
def test_what_sends_least_is_chosen(heads: int, key_heads: int, window: int | None, chosen: str) -> None:
    of = _shapes(64, (heads, key_heads))
    call = AttentionCall("attention", of["q"], of["k"], of["v"], True, window, None, 1.0)
    sent = numbers_sent(call, ring_of(call, "context", 4, lambda x, spec: x))
    assert min(sent, key=lambda each: sent[each]) == chosen


@pytest.mark.parametrize(
    ("heads", "key_heads", "beside", "sent"),
    [(32, 8, 1, 8), (32, 2, 1, 4), (32, 8, 2, 8), (32, 8, 4, 16), (32, 2, 4, 16), (24, 8, 4, 8), (32, 16, 4, 16)],
)
def test_key_heads_are_sent_to_as_many_devices_as_split_heads_together(
    heads: int, key_heads: int, beside: int, sent: int
) -> None:
    """Of fewer, XLA would gather queries again that other devices have split. 24 heads do not go into 16 devices."""
    of = _shapes(64, (heads, key_heads))
    call = AttentionCall("attention", of["q"], of["k"], of["v"], True, None, None, 1.0)
    assert key_heads_sent(call, ring_of(call, "context", 4, lambda x, spec: x, num_beside=beside)) == sent


def test_rows_of_a_mask_are_counted_where_they_are_sent() -> None:
    of, mask = _shapes(256, (8, 8)), jnp.ones((1, 1, 256, 256), bool)
    call = AttentionCall("attention", of["q"], of["k"], of["v"], True, None, None, 1.0)
    before, after = (
        numbers_sent(one, ring_of(one, "context", 4, lambda x, spec: x))
        for one in (call, dataclasses.replace(call, terms=(mask,)))
    )
    row = 256 / 2 / 4  # of a token, for both samples, in numbers of a head
    assert after["all_to_all"] - before["all_to_all"] == 3 * row  # to each other device, for its heads
    assert after["ring"] - before["ring"] == row / 2  # half of the queries change devices


def test_all_calls_that_cannot_be_split_are_named_at_once() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        x = outlay.attention(q, k, v, causal=True)
        y, _ = jax.nn.dot_product_attention(q, k, v, return_residual=True)
        z = outlay.attention(q[:, :, :3], k[:, :, :3], v[:, :, :3])
        return x.sum() + y.sum() + z.sum()

    rules = [("@attention", context("context", "all_to_all")), ("@dot_product_attention", context("context", "ring"))]
    with pytest.raises(ProgramError, match="5 problems with attention whose tokens are split") as refused:
        _program(attend, _shapes(30), *rules)
    first, message = attend.__code__.co_firstlineno, str(refused.value)
    for line, words in (
        (1, "30 tokens do not divide over context=4"),
        (2, "the call has return_residual"),
        (2, "pad the sequence to 32 tokens"),
        (3, "3 heads do not divide over context=4"),
    ):
        assert f"test_split_attention.py:{first + line}" in message
        assert words in message


def test_halves_have_to_divide() -> None:
    rule = ("@dot_product_attention", context("context", "ring"))
    with pytest.raises(ProgramError, match=r"28 tokens do not divide over 2 chunks for each device of context=4"):
        _program(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), _shapes(28), rule)


def test_cross_attention_to_keys_of_another_length() -> None:
    batch = jax.tree.map(lambda x: x * jnp.cos(jnp.arange(x.size)).reshape(x.shape), _shapes(16, keys=32))
    program = _program(lambda q, k, v: outlay.attention(q, k, v), batch, ("@attention", context("context", "ring")))
    _, got = program(program.init(jax.random.key(0)), batch)
    expected = jax.nn.dot_product_attention(batch["q"], batch["k"], batch["v"])
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_a_rule_that_names_no_call_is_refused_with_what_there_is() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return outlay.attention(q, k, v)

    rule = ("@dot_product_attention", context("context"))
    with pytest.raises(ProgramError, match=r"(?s)no call of attention.*@attention"):
        _program(attend, _shapes(), rule)


def test_a_step_without_calls_is_told_which_calls_there_could_be() -> None:
    with pytest.raises(ProgramError, match=r"(?s)the step calls none: give the model.*jax.nn.dot_product_attention"):
        _program(lambda q, k, v: q @ k.mT @ v, _shapes())


def test_a_rule_for_the_function_around_splits_its_calls_and_no_others() -> None:
    def inner(q: Any, k: Any, v: Any) -> Any:
        return outlay.attention(q, k, v)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return inner(q, k, v) + outlay.attention(q, v, k)

    program = _program(attend, _shapes(), ("@inner", context("context", "ring")))
    assert program.contexts.count("\n") == 0
    assert f"test_split_attention.py:{inner.__code__.co_firstlineno + 1}: a ring" in program.contexts


def test_where_xla_does_not_place_values_it_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"for mode auto on automatic axes; this is mode manual"):
        _program(lambda q, k, v: outlay.attention(q, k, v), _shapes(), mode="manual")


def test_beside_stages_that_are_programs_of_their_own_it_is_refused() -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (outlay.attention(x * w, x, x), None), batch, params["layers"])
        return x.mean((1, 2, 3)), {}

    rules = [("params.layers", outlay.layout.pipeline("stage", microbatches=2)), ("@attention", context())]
    layout, optimizer = outlay.Layout([*rules, ("batch.**", P(None, "context"))]) + outlay.replicate(), optax.sgd(0.1)
    step, init = outlay.train_step(loss, optimizer), outlay.init_state(lambda key: {"layers": jnp.ones(4)}, optimizer)
    mesh = outlay.mesh(stage=2, context=2, devices=jax.devices()[:4])
    with pytest.raises(ProgramError, match=r'(?s)@attention.*this is mode placed.*mode="auto"'):
        outlay.program(step, init, _shapes()["q"], layout=layout, mesh=mesh, mode="placed")


def test_what_cannot_be_split_is_named_once_in_a_pipeline_too() -> None:
    def step(state: Any, batch: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return outlay.attention(x * w, x, x, causal=True), None

        return state, jax.lax.scan(layer, batch, state["layers"])[0]

    rules = [("layers", outlay.layout.pipeline("stage", microbatches=2)), ("@attention", context("context", "ring"))]
    mesh = outlay.mesh(stage=2, context=2, devices=jax.devices()[:4])
    layout = outlay.Layout([*rules, ("batch.**", P(None, "context"))])
    line = step.__code__.co_firstlineno + 2
    with pytest.raises(ProgramError, match=r"(?s)1 problem with.*30 tokens do not divide over 2 chunks") as refused:
        outlay.program(step, lambda: {"layers": jnp.ones(4)}, _shapes(30)["q"], layout=layout, mesh=mesh)
    assert f"test_split_attention.py:{line}" in str(refused.value)


def test_on_one_device_of_its_axis_a_rule_changes_nothing() -> None:
    program = _program(lambda q, k, v: outlay.attention(q, k, v), _shapes(), context=1, data=2)
    assert (program.passes, program.contexts) == ((), "")


def test_wrong_placements_and_patterns_are_refused_where_they_are_written() -> None:
    with pytest.raises(LayoutError, match=r"(?s)axis=''.*exchange='rings'.*ring"):
        context("", cast("Any", "rings"))
    with pytest.raises(LayoutError, match=r"(?s)names no call.*@attention"):
        outlay.Layout([("params.**", context("context"))])
    with pytest.raises(LayoutError, match="'sequence'"):
        _program(lambda q, k, v: outlay.attention(q, k, v), _shapes(), ("@attention", context("sequence")))


def test_a_layout_file_holds_it(tmp_path: Any) -> None:
    layout = outlay.Layout([("@attention", context("context", "ring")), ("@f", context("seq")), ("batch.**", P("seq"))])
    file = tmp_path / "layout.toml"
    file.write_text(outlay.layout.write_layout(layout))
    assert outlay.layout.read_layout(file) == layout
    file.write_text('[[rule]]\nmatch = "@attention"\ncontext = { exchange = "rings" }\n')
    with pytest.raises(LayoutError, match=r"layout.toml:3(?s:.*)exchange = \"ring\""):
        outlay.layout.read_layout(file)
