"""Gradients of a pipeline's layers whose batch is split: added up on each device, and summed over them once a step."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

LAYERS, WIDTH, TOKENS, SAMPLES, MICROBATCHES = 4, 32, 12, 8, 4
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
BATCH = np.random.default_rng(0).normal(size=(SAMPLES, TOKENS, WIDTH)).astype(np.float32)


def init(key: jax.Array) -> Any:
    up, down, gate = (jax.random.normal(one, (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5 for one in jax.random.split(key, 3))
    return {
        "up": up,
        "down": down,
        "gate": gate,
        "bias": jnp.linspace(-1, 1, LAYERS * WIDTH).reshape(LAYERS, WIDTH),
        "scale": jnp.linspace(0.5, 1.5, LAYERS * WIDTH).reshape(LAYERS, WIDTH),
    }


def layer(x: jax.Array, own: Any) -> jax.Array:
    """Multiply by a kernel, its transpose, a pair of one operand, and one that is normalized; shift and scale."""
    normalized = own["gate"] / jnp.linalg.norm(own["gate"], axis=0, keepdims=True)
    hidden = jnp.einsum("btd,df->btf", x * own["scale"][None, None], own["up"]) + own["bias"][None, None]
    down = (2 * own["down"].T).reshape(WIDTH, 4, -1)
    mixed = jnp.einsum("btf,fhd->bthd", jnp.tanh(hidden), down).reshape(x.shape)
    return x + mixed * jax.nn.sigmoid(x @ normalized) + x @ own["up"]


KINDS = {
    "plain": layer,
    "computed again": jax.checkpoint(layer),
    "within a call": jax.jit(layer),
}


def made(of_layer: Any, repeats: int = 1, more: Any = (), *, is_own_step: bool = False) -> Any:
    def loss(params: Any, batch: Any, keys: Any = None) -> Any:
        x, _ = jax.lax.scan(lambda x, own: (of_layer(x, own), None), batch, params)
        return jnp.sum(x**2, axis=(1, 2)), {}

    def own_step(state: Any, batch: Any) -> Any:
        return jax.grad(lambda params: jnp.mean(loss(params, batch)[0]))(state), None

    rule = ("params.**", outlay.layout.pipeline("stage", microbatches=MICROBATCHES, repeats=repeats))
    step = outlay.train_step(loss, OPTIMIZER), outlay.init_state(init, OPTIMIZER)
    if is_own_step:
        rule, step = ("**", rule[1]), (own_step, init)
    program = outlay.program(
        *step,
        BATCH,
        layout=outlay.Layout([rule, ("batch", P("data", "context")), *more]) + outlay.replicate(),
        mesh=outlay.mesh(stage=2, data=2, context=2),
    )
    return program, loss


def expected(program: Any, loss: Any) -> Any:
    params = program.init(jax.random.key(0))
    params = jax.tree.map(np.asarray, getattr(params, "params", params))
    return jax.jit(jax.grad(lambda params: loss(params, BATCH)[0].mean()))(params)


def assert_same(gradients: Any, of_one: Any) -> None:
    """Compare within 1e-6 of the largest entry of each leaf."""

    def compare(one: Any, other: Any) -> None:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * float(np.abs(other).max()))

    jax.tree.map(compare, jax.tree.map(np.asarray, gradients), jax.tree.map(np.asarray, of_one))


@pytest.mark.parametrize(("kind", "repeats"), [("plain", 1), ("computed again", 2), ("within a call", 1)])
def test_gradients_are_those_of_one_device_and_no_tick_sums_them_over_devices(kind: str, repeats: int) -> None:
    """Only that of the normalized kernel is summed there: more is computed from it than a sum."""
    program, loss = made(KINDS[kind], repeats)
    state, _ = program(program.init(jax.random.key(0)), BATCH)
    # After one step the momentum is the gradient.
    assert_same(state.opt_state[0].trace, expected(program, loss))
    assert in_loops(program.compiled.as_text()) == [f"1,{WIDTH},{WIDTH}"]


def test_gradients_of_a_step_of_ones_own() -> None:
    program, loss = made(layer, is_own_step=True)
    of_one = expected(program, loss)
    assert_same(program(program.init(jax.random.key(0)), BATCH)[0], of_one)
    # Here devices add up gradients of their own samples too, and the other kernel's is summed over either axis.
    assert in_loops(program.compiled.as_text()) == [f"1,{WIDTH},{WIDTH}"] * 2


def in_loops(text: str) -> list[str]:
    """Return the shapes of what is summed over devices in a loop, of an entry of a kernel or more."""
    lines = [line for line in text.splitlines() if re.search(r" all-reduce(-start)?\(", line) and "while/body" in line]
    shapes = [shape for line in lines for shape in re.findall(r"f32\[([\d,]*)\]", line.partition(" all-reduce")[0])]
    return [shape for shape in shapes if shape.endswith(str(WIDTH))]


def test_a_layer_that_the_same_devices_split_is_added_up_as_before() -> None:
    """In parts, each device would hold all of what it has a part of."""
    rules = [("**.up", P(None, "context"))]
    program, loss = made(layer, more=rules)
    state, _ = program(program.init(jax.random.key(0)), BATCH)
    assert_same(state.opt_state[0].trace, expected(program, loss))


@jax.custom_vjp
def with_odd_gradient(kernel: jax.Array) -> jax.Array:
    return kernel


def odd(_: None, gradient: jax.Array) -> tuple[jax.Array]:
    """Round a gradient to 8 bits, and add a number without dims: of parts it would be something else, or an error."""
    return ((gradient / 64).astype(jnp.float8_e4m3fn).astype(jnp.float32) * 64 + 0.0,)


with_odd_gradient.defvjp(lambda kernel: (kernel, None), odd)


def test_what_is_not_linear_is_done_to_the_whole_sum() -> None:
    """A step with one microbatch a device, so that the sums of a tick are those of one device up to rounding."""
    program, loss = made(lambda x, own: layer(x, {**own, "up": with_odd_gradient(own["up"])}), is_own_step=True)
    gradients = program(program.init(jax.random.key(0)), BATCH)[0]
    params = jax.tree.map(np.asarray, program.init(jax.random.key(0)))

    def of_microbatch(number: int) -> Any:
        own = np.concatenate([BATCH[number : number + 1], BATCH[number + MICROBATCHES : number + MICROBATCHES + 1]])
        return jax.grad(lambda params: jnp.sum(loss(params, own)[0]) / SAMPLES)(params)

    each = [of_microbatch(number) for number in range(MICROBATCHES)]
    assert_same(gradients, jax.tree.map(lambda *some: np.sum(np.stack(some), axis=0), *each))
