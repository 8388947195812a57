"""What pipelines meet besides training here: steps written by hand, checkpoints, the compilers of GPUs and TPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

import outlay

pytestmark = pytest.mark.newest

LAYERS, WIDTH = 4, 16
BATCH = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
FORMS = ("list", "stack")  # test_pipelines.py trains a stack with every change


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w)


def init_of(form: str) -> Any:
    def init(key: jax.Array) -> Any:
        stack = 0.3 * jax.random.normal(key, (LAYERS, WIDTH, WIDTH))
        return {"layers": [*stack] if form == "list" else stack, "head": jnp.ones((WIDTH,))}

    return init


def run(params: Any, x: jax.Array) -> jax.Array:
    if isinstance(params["layers"], list):
        x = outlay.layers(params["layers"], x, run=layer)
    else:
        x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, params["layers"])
    return x @ params["head"]


def loss(params: Any, batch: Any, keys: Any) -> Any:
    return run(params, batch) ** 2, {}


def pipeline(form: str) -> outlay.Layout:
    pattern = "params.layers.*" if form == "list" else "params.layers"
    return outlay.Layout([(pattern, outlay.layout.pipeline("stage", microbatches=2))])


def made(form: str, layout: outlay.Layout, **sizes: Any) -> outlay.Program:
    step, init = outlay.train_step(loss, OPTIMIZER), outlay.init_state(init_of(form), OPTIMIZER)
    return outlay.program(step, init, BATCH, layout=layout + outlay.data_parallel(), mesh=outlay.mesh(**sizes))


def test_layers_that_the_model_writes_out_are_arrays_of_their_own() -> None:
    def unrolled(params: Any, batch: Any, keys: Any) -> Any:
        def turn(carried: Any, w: jax.Array) -> Any:
            x, key = carried
            return (layer(w, x), jax.random.split(key)[0]), (x**2).mean(-1)

        (x, _), sizes = jax.lax.scan(turn, (batch, jax.random.key(0)), params["layers"], unroll=2)
        return (x @ params["head"]) ** 2 + sizes.sum(0), {}

    step, init = outlay.train_step(unrolled, OPTIMIZER), outlay.init_state(init_of("stack"), OPTIMIZER)
    layout, mesh = pipeline("stack") + outlay.data_parallel(), outlay.mesh(stage=2, data=4)
    program = outlay.program(step, init, BATCH, layout=layout, mesh=mesh)
    text, of_one = program.lowered.as_text(), rf"tensor<2x1x{WIDTH}x{WIDTH}xf32>"
    assert len(re.findall(rf"stablehlo.add .* : {of_one}", text)) == 2
    assert not re.search(rf"stablehlo.add .* : tensor<2x(1x)?2x{WIDTH}x{WIDTH}xf32>", text)
    (got, _), (expected, _) = (
        program(program.init(jax.random.key(0)), BATCH),
        jax.jit(step)(init(jax.random.key(0)), BATCH),
    )
    for left, right in zip(jax.tree.leaves(got.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-6 * np.abs(right).max())


@pytest.mark.some_cases(1, newest=1)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_written_by_hand(form: str) -> None:
    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(lambda params: (run(params, batch) ** 2).mean())(state["params"])
        return {"params": jax.tree.map(lambda x, grad: x - 0.1 * grad, state["params"], grads)}, value

    def init(key: jax.Array) -> Any:
        return {"params": init_of(form)(key)}

    layout = pipeline(form) + outlay.data_parallel()
    program = outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(stage=2, data=4))
    assert program.passes == ("pipelining",)
    state = init(jax.random.key(0))
    expected, value = jax.jit(step)(state, BATCH)
    got, loss = program(program.init(jax.random.key(0)), BATCH)
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-6 * np.abs(right).max())


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_goes_from_a_pipeline_to_fsdp_and_back(form: str, tmp_path: Path) -> None:
    pipelined = made(form, pipeline(form), stage=4, data=2)
    sharded = made(form, outlay.fsdp(min_size=1, otherwise="replicate"), data=8)
    state = pipelined.init(jax.random.key(0))
    first = jax.tree.map(np.asarray, (state.params, state.opt_state))
    for number, (program, folder) in enumerate([(sharded, "one"), (pipelined, "two")], 1):
        with outlay.Checkpoints(tmp_path / folder) as checkpoints:
            checkpoints.save(number, state)
            step, state = checkpoints.restore(program)
        assert step == number
        for leaf, planned in zip(jax.tree.leaves(state), program.plan.state, strict=True):
            assert leaf.sharding.shard_shape(leaf.shape) == planned.local_shape, planned.path
    for left, right in zip(jax.tree.leaves((state.params, state.opt_state)), jax.tree.leaves(first), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.some_cases(1, newest=0)  # test_compile_only.py compiles for both
@pytest.mark.compiles
@pytest.mark.parametrize(
    "target",
    [pytest.param("h100:1x8", marks=needs_gpu_compiler), pytest.param("tpu-v5e:2x4", marks=needs_tpu_compiler)],
)
def test_it_compiles_for_hardware_that_is_not_there_and_is_explained(target: str) -> None:
    program = made("list", pipeline("list") + outlay.fsdp("data", min_size=1), stage=2, data=4, target=target)
    explanation = outlay.explain(program)
    assert {"collective-permute", "all-to-all"} <= {one.kind for one in explanation.collectives}
    permutes = [one for one in explanation.collectives if one.kind == "collective-permute"]
    assert {one.axes for one in permutes} == {("stage",)}
    text = str(explanation)
    assert "2 microbatches once through 2 stages: 3 ticks" in program.pipelines
    assert "accumulate=" not in text
