"""What goes from stage to stage in a pipeline, what waits, and what is computed for all microbatches once."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay

pytestmark = pytest.mark.newest

LAYERS, WIDTH, MICROBATCHES = 4, 32, 16
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
RNG = np.random.default_rng(0)


def init(key: jax.Array) -> Any:
    return {
        "kernel": jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5,
        "frozen": jnp.linspace(0.5, 1.5, LAYERS * WIDTH).reshape(LAYERS, WIDTH),
    }


def loss(params: Any, batch: Any, keys: Any) -> Any:
    """Run layers of which one leaf is not trained, on numbers and the integers that choose between their halves."""

    def layer(carried: Any, own: Any) -> Any:
        x, number = carried
        y = jnp.tanh(x @ own["kernel"]) * jax.lax.stop_gradient(own["frozen"])[None]
        return (x + jnp.where(number[:, None] % 2, y, -y), number + 1), None

    (x, _), _ = jax.lax.scan(layer, (batch["x"], batch["number"]), params)
    return jnp.sum(x**2, axis=-1), {}


BATCH = {"x": RNG.normal(size=(32, WIDTH)).astype(np.float32), "number": np.arange(32, dtype=np.int32)}


def made(repeats: int = 1, more: outlay.Layout | None = None) -> Any:
    rule = ("params.**", outlay.layout.pipeline("stage", microbatches=MICROBATCHES, repeats=repeats))
    return outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=outlay.Layout([rule]) + (more or outlay.Layout([])) + outlay.data_parallel(),
        mesh=outlay.mesh(stage=2, data=1, devices=jax.devices()[:2]),
    )


@pytest.mark.parametrize("repeats", [1, 2])
def test_gradients_of_integers_that_move_and_of_what_is_not_trained(repeats: int) -> None:
    program = made(repeats)
    state = program.init(jax.random.key(0))
    params = jax.tree.map(np.asarray, state.params)
    expected = jax.jit(jax.grad(lambda params: loss(params, BATCH, None)[0].mean()))(params)
    state, _ = program(state, BATCH)
    # After one step the momentum is the gradient.
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        jax.tree.map(np.asarray, state.opt_state[0].trace),
        jax.tree.map(np.asarray, expected),
    )
    assert not np.any(expected["frozen"])


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_tick_moves_one_microbatch_and_touches_no_other_that_waits(repeats: int) -> None:
    """A copy of all that wait, in each tick of as many, grows with the square of their number."""
    text = made(repeats).compiled.as_text()
    moved = Counter(re.findall(r"= (\w+\[[\d,]*\])\S* collective-permute(?:-start)?\(", text))
    one, waiting = f"1,{32 // MICROBATCHES},{WIDTH}", f"1,{MICROBATCHES},{32 // MICROBATCHES},{WIDTH}"
    assert moved[f"f32[{one}]"] == 2, "one each way"
    made_of_all = Counter(re.findall(rf"= f32\[{waiting}\]\S* ([\w-]+)\(", text))
    assert made_of_all["dynamic-update-slice"] == 2, "what comes back is written, and its gradient"
    assert not {"copy", "add", "select"} & {*made_of_all}


@pytest.mark.parametrize("scaling", ["current", "delayed"])
def test_kernels_are_rounded_to_8_bits_once_for_all_microbatches(scaling: Any) -> None:
    text = made(2, outlay.Layout([("params.kernel", outlay.layout.fp8(scaling))])).compiled.as_text()
    rounded = re.findall(rf"= f8e4m3fn\[[\d,]*{WIDTH},{WIDTH}\]\S* convert\(.*", text)
    assert not [line for line in rounded if "while/body" in line]
    assert "f8e4m3fn[" in text


def test_two_parameters_of_a_product_under_different_rules_are_rounded_as_without_a_pipeline() -> None:
    """The product is scaled as its first rule says, and what was rounded before for the other rule is not for it."""

    def of_two(params: Any, batch: Any, keys: Any) -> Any:
        def layer(x: jax.Array, own: Any) -> Any:
            return x + jnp.tanh(x @ (own["first"] @ own["second"])) + x @ own["second"], None

        return jnp.sum(jax.lax.scan(layer, batch, params)[0] ** 2, axis=-1), {}

    def init_two(key: jax.Array) -> Any:
        return {name: init(key)["kernel"] / 4 for name in ("first", "second")}

    rules = [("params.first", outlay.layout.fp8("delayed")), ("params.second", outlay.layout.fp8())]
    losses = []
    for more in ([], [("params.**", outlay.layout.pipeline("stage", microbatches=MICROBATCHES))]):
        program = outlay.program(
            outlay.train_step(of_two, OPTIMIZER),
            outlay.init_state(init_two, OPTIMIZER),
            BATCH["x"],
            layout=outlay.Layout([*rules, *more]) + outlay.data_parallel(),
            mesh=outlay.mesh(stage=2, data=1, devices=jax.devices()[:2]),
        )
        losses.append(float(program(program.init(jax.random.key(0)), BATCH["x"])[1]["loss"]))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)
