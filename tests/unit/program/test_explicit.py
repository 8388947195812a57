"""Explicit axes: untouched steps run where JAX has no choice; elsewhere the error says which line to edit, and how."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

VOCABULARY, WIDTH, HEADS, HIDDEN, LENGTH, BATCH = 32, 16, 4, 32, 8, 8
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
KEY = 0


def lm_init(key: Any) -> Any:
    keys = iter(jax.random.split(key, 6))

    def normal(*shape: int) -> jax.Array:
        return 0.2 * jax.random.normal(next(keys), shape)

    return {
        "embed": normal(VOCABULARY, WIDTH),
        "qkv": normal(3, WIDTH, HEADS, WIDTH // HEADS),
        "out": normal(HEADS, WIDTH // HEADS, WIDTH),
        "up": normal(WIDTH, HIDDEN),
        "down": normal(HIDDEN, WIDTH),
        "head": normal(WIDTH, VOCABULARY),
    }


def attention(params: Any, x: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dhe->bthe", x, w) for w in params["qkv"])
    weights = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k))
    return jnp.einsum("bhqk,bkhe->bqhe", weights, v)


def edited(params: Any, tokens: jax.Array, upto: int = 4) -> jax.Array:
    """The same with the first edits that the errors for `TENSOR` ask for, one after the other."""
    rows, whole = P("data", None, None), {"out_sharding": P("data", None, None)}
    how = [whole if number < upto else {} for number in range(4)]
    table = params["embed"]
    x = table.at[tokens[:, :-1]].get(out_sharding=rows) if how[0] else table[tokens[:, :-1]]  # site: lookup
    x = x + jnp.einsum("bqhe,hed->bqd", attention(params, x), params["out"], **how[1])  # site: out
    x = x + jnp.matmul(jax.nn.gelu(x @ params["up"]), params["down"], **how[2])  # site: up, down
    scores = jax.nn.log_softmax(x @ params["head"])
    scores = jax.reshard(scores, P("data")) if how[3] else scores
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()  # site: pick


def step_of(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], tuple[Any, Any]]:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {"loss": value}

    return step


TENSOR = outlay.Layout(
    [
        ("qkv", P(None, None, "model")),
        ("out", P("model")),
        ("up", P(None, "model")),
        ("down", P("model")),
        ("head", P(None, "model")),
    ]
)


def lm(loss: Any, layout: Any, **axes: int) -> outlay.Program:
    mesh = outlay.mesh(**axes, explicit=True)
    return outlay.program(step_of(loss), lm_init, TOKENS, layout=layout + outlay.data_parallel(), mesh=mesh)


def error_of(program: outlay.Program) -> str:
    with pytest.raises(outlay.errors.ProgramError) as caught:
        program.lowered  # noqa: B018 - lowering is what JAX refuses
    return str(caught.value)


def site_in(message: str) -> tuple[str, str]:
    """Kind of problem and mark of the line that an error names."""
    ((kind, line),) = re.findall(r"^  ([\w ]+): \S+test_explicit\.py:(\d+) in edited\n", message, re.MULTILINE)
    return kind, Path(__file__).read_text().splitlines()[int(line) - 1].partition("# site: ")[2]


@pytest.mark.any_jax
@pytest.mark.compiles
def test_each_line_that_leaves_a_sharding_open_is_named_with_its_operands_and_the_edit() -> None:
    lookup = "table.at[indices].get(out_sharding=P(...))"
    product = "jnp.matmul or jnp.einsum(..., out_sharding=P(...))"
    for upto, (kind, site, operands, edit) in enumerate(
        [
            ("lookup in a split table", "lookup", "float32[32,16]), indices=ShapedArray(int32[8@data,8,1])", lookup),
            ("sum over a split dim", "out", "lhs_contracting_spec=(None, 'model')", product),
            ("sum over a split dim", "up, down", "rhs_contracting_spec=('model',)", product),
            ("lookup in a split table", "pick", "float32[8@data,8,32@model]", "jax.reshard(table, P(...))"),
        ]
    ):
        message = error_of(lm(functools.partial(edited, upto=upto), TENSOR, data=4, model=2))
        assert site_in(message) == (kind, site)
        assert operands in message
        assert edit in message
        assert "or leave the choice to XLA: outlay.mesh(data=4, model=2)" in message
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.compiles
def test_with_these_edits_the_model_runs_and_equals_one_device() -> None:
    program = lm(edited, TENSOR, data=4, model=2)
    state = program.init(jax.random.key(KEY))
    alone = jax.tree.map(np.array, state)
    step = jax.jit(step_of(functools.partial(edited, upto=0)))
    for _ in range(3):
        state, outputs = program(state, TOKENS)
        alone, expected = step(alone, TOKENS)
        np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, alone)
    assert state["down"].sharding.spec == P("model", None)


@pytest.mark.any_jax
def test_an_operation_of_a_library_is_named_with_the_line_that_called_it() -> None:
    message = error_of(
        small(
            step_of(lambda params, x: optax.l2_loss(params["w"], x[:, :8]).mean()), {"w": P(None, "data")}, x=P("data")
        )
    )
    assert re.search(r"open sharding: \S+/optax/\S+:\d+ in \w+\n", message)
    assert re.search(r"called from \S+test_explicit\.py:\d+ in \S*<lambda>\n", message)


def test_a_line_of_a_backward_pass_is_named_with_its_forward_line() -> None:
    @jax.custom_vjp
    def first(x: jax.Array) -> jax.Array:
        return x.sum()

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.sum(), x

    def backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
        return (g * jnp.cumsum(x, axis=0),)

    first.defvjp(forward, backward)
    message = error_of(small(step_of(lambda params, x: first(params["w"])), {"w": P("data")}))
    assert "in backward\n    return (g * jnp.cumsum(x, axis=0),)" in message
    assert re.search(r"in the backward pass of \S+test_explicit\.py:\d+ in \S*<lambda>\n", message)
    assert "input type=float32[16@data,8] and axis=0" in message
    assert "fix: jax.reshard(operand, P(...))" in message


def test_the_line_of_an_init_is_named() -> None:
    def made(key: Any) -> Any:
        w = jax.reshard(jax.random.normal(key, (16, 8)), P("data"))
        return {"w": w, "mixed": jnp.cumsum(w, axis=0)}

    def make(init: Any) -> outlay.Program:
        mesh = outlay.mesh(data=8, explicit=True)
        return outlay.program(lambda state, x: (state, {}), init, np.ones(8), layout=[outlay.replicate()], mesh=mesh)

    with pytest.raises(outlay.errors.ProgramError, match=r"^init made leaves a sharding open") as caught:
        make(made)
    assert 'return {"w": w, "mixed": jnp.cumsum(w, axis=0)}' in str(caught.value)

    def of_its_own(key: Any) -> Any:
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        make(of_its_own)


@pytest.mark.any_jax
def test_a_carry_that_changes_its_sharding_is_an_open_sharding_too() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        carry, _ = jax.lax.scan(lambda c, _: (c + x[:, :1], None), jnp.zeros((16, 1)), None, length=2)
        return carry.sum()

    message = error_of(small(step_of(loss), {"w": P("data")}, x=P("data")))
    assert "carry of a loop" in message
    assert "float32[16@data,1]" in message
    assert "fix: start with what the body returns: jax.reshard(start, P(...))" in message


def small(step: Any, specs: dict[str, P], x: P = P()) -> outlay.Program:
    layout = outlay.Layout([*specs.items(), ("batch", x)])
    mesh = outlay.mesh(data=8, explicit=True)
    return outlay.program(
        step, lambda key: {"w": jnp.ones((16, 8))}, np.ones((16, 16), np.float32), layout=layout, mesh=mesh
    )


@pytest.mark.any_jax
def test_an_error_of_the_users_own_is_not_touched() -> None:
    calls = []

    def step(state: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("the user's own")
        return state, {}

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        small(step, {"w": P("data")}).lowered  # noqa: B018


def mlp_loss(params: Any, batch: Any, keys: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["up"] + params["bias"])
    return jnp.square(hidden @ params["down"] - batch["y"]).mean(-1), {}


def mlp_init(key: Any) -> Any:
    up, down = jax.random.split(key)
    return {
        "up": jax.random.normal(up, (16, 32)),
        "bias": jnp.zeros((1, 32)),
        "down": jax.random.normal(down, (32, 8)),
    }


MLP_BATCH = {
    "x": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32),
    "y": np.ones((16, 8), np.float32),
}


def mlp_trained(layout: outlay.Layout, mesh: jax.sharding.Mesh) -> Any:
    """Parameters and loss after three steps."""
    program = outlay.program(
        outlay.train_step(mlp_loss, optax.adam(1e-2)),
        outlay.init_state(mlp_init, optax.adam(1e-2)),
        MLP_BATCH,
        layout=layout + outlay.data_parallel(),
        mesh=mesh,
    )
    state = program.init(jax.random.key(0))
    for _ in range(3):
        old = state
        state, metrics = program(state, MLP_BATCH)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.params)), "the state is donated"
    return jax.device_get(state.params), float(metrics["loss"])


@pytest.fixture(scope="module")
def mlp_on_one_device() -> Any:
    return mlp_trained(outlay.Layout(), outlay.mesh(data=1, devices=jax.devices()[:1]))


@pytest.mark.some_cases(1)
@pytest.mark.any_jax  # the edited model above trains there
@pytest.mark.compiles
@pytest.mark.parametrize("layout", [outlay.Layout(), outlay.zero1(min_size=8), outlay.zero2(min_size=8)])
def test_an_untouched_mlp_trains_on_explicit_axes_as_on_one_device(
    layout: outlay.Layout, mlp_on_one_device: Any
) -> None:
    trained = mlp_trained(layout, outlay.mesh(data=8, explicit=True))
    assert jax.sharding.get_abstract_mesh().empty
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), trained, mlp_on_one_device)


def test_a_constraint_moves_a_value_on_explicit_axes() -> None:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, {"split": outlay.constrain(batch * 2, P("data"))}

    program = small(step, {"w": P("data")})
    _, outputs = program(program.init(jax.random.key(0)), np.ones((16, 16), np.float32))
    assert outputs["split"].sharding.shard_shape((16, 16)) == (2, 16)


@pytest.mark.any_jax
def test_explicit_axes_are_asked_for() -> None:
    assert outlay.mesh(data=8, explicit=True).axis_types == (AxisType.Explicit,)
    assert outlay.mesh(data=4, model=2).axis_types == (AxisType.Auto,) * 2
    with pytest.raises(outlay.errors.MeshError, match="explicit= is a parameter of"):
        outlay.mesh(data=4, explicit=2)


@pytest.mark.thorough  # the tests above train on such axes
@pytest.mark.any_jax
@pytest.mark.compiles
def test_accumulation_keeps_the_shardings_of_gradients_on_explicit_axes():
    def loss(params, batch, keys):
        return jnp.square(jnp.tanh(batch @ params["up"]) @ params["down"]).mean(axis=1), {}

    def params_after(num_microbatches, **how):
        optimizer = optax.sgd(0.1)
        init = outlay.init_state(lambda key: {"up": jnp.ones((16, 8)), "down": jnp.ones((8, 8))}, optimizer)
        layout = outlay.fsdp(min_size=16) + outlay.data_parallel()
        step = outlay.train_step(loss, optimizer, accumulate=num_microbatches)
        batch = np.linspace(-1, 1, 48 * 16, dtype=np.float32).reshape(48, 16)
        program = outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(data=8, **how))
        state, _ = program(program.init(jax.random.key(0)), batch)
        return jax.device_get(state.params)

    got, expected = params_after(3, explicit=True), params_after(1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)
