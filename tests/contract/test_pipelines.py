"""Models that scan over their layers, or list them, run as pipelines, and learn what they learn on one device."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tests.contract.listed_models import LISTED
from tests.contract.scanned_models import MODELS, NUM_TOKENS, VOCABULARY

import outlay

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_rank_promotion("allow"):
        yield


BATCH = {"tokens": np.random.default_rng(0).integers(0, VOCABULARY, (8, NUM_TOKENS))}
# Linear in the gradients, and its momentum is the gradient itself after the first step.
OPTIMIZER = optax.sgd(0.1, momentum=0.9)

WAYS = {
    "plain": ("stage=2,data=2", 1, 1, ""),
    "nnx.scan": ("stage=4,data=2", 1, 1, ""),
    "nnx states": ("stage=2,data=2,model=2", 2, 1, "fsdp"),
    "nn.scan": ("stage=2,data=4", 2, 1, ""),
    "nn.scan of one sample": ("stage=4,data=2", 1, 1, ""),
    "equinox": ("stage=2,data=2", 1, 2, ""),
    "equinox attention": ("stage=2,data=2", 2, 1, "fsdp"),
    "plain list": ("stage=2,data=2,model=2", 2, 1, "fsdp"),
    "nnx list": ("stage=4,data=2", 1, 1, ""),
    "nnx attention list": ("stage=2,data=2", 2, 1, ""),
    "equinox list": ("stage=2,data=2", 1, 2, "fsdp"),
    "equinox dropout list": ("stage=2,data=4", 1, 1, ""),
}
"""Of each model: mesh, repeats, parts of the batch for accumulation, and how other axes split the leaves."""


@pytest.mark.some_cases(1, newest=0)  # test_pipelining.py has what other libraries' loops become
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_scans_is_trained_as_on_one_device(name: str) -> None:
    _is_trained_as_on_one_device(name, *MODELS[name]())


@pytest.mark.thorough  # test_pipelines_elsewhere.py trains one
@pytest.mark.parametrize("name", LISTED)
def test_a_model_that_lists_its_layers_is_trained_as_on_one_device(name: str) -> None:
    _is_trained_as_on_one_device(name, *LISTED[name]())


def _is_trained_as_on_one_device(name: str, init_params: Any, loss: Any, pattern: str) -> None:
    mesh, repeats, accumulate, others = WAYS[name]
    microbatches = 4 if "stage=4" in mesh else 2
    layout = outlay.Layout([(pattern, outlay.layout.pipeline("stage", microbatches=microbatches, repeats=repeats))])
    if others == "fsdp":
        layout += outlay.fsdp("model" if "model" in mesh else "data", min_size=1, otherwise="replicate")
    layout += outlay.data_parallel() if "data" in mesh else outlay.replicate()
    step = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate)
    init = outlay.init_state(init_params, OPTIMIZER)
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}
    devices = jax.devices()[: int(np.prod(list(sizes.values())))]
    program = outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(**sizes, devices=devices))
    alone = outlay.program(
        step, init, BATCH, layout=outlay.data_parallel(), mesh=outlay.mesh(data=1, devices=devices[:1])
    )
    assert program.passes[0] == "pipelining"
    assert len(re.findall(r" collective-permute(?:-start)?\(", program.compiled.as_text())) >= 2

    left, right = (_trained(each) for each in (program, alone))

    assert jax.tree.structure(left) == jax.tree.structure(right)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(right)[0]]
    largest = max(np.abs(other).max() for other in jax.tree.leaves(right))
    for path, got, other in zip(paths, jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(got, other, rtol=0, atol=1e-6 * max(np.abs(other).max(), largest / 10), err_msg=path)


def _trained(program: Any) -> Any:
    """Return gradients (as the momentum of the first step), parameters and loss."""
    state, metrics = program(program.init(jax.random.key(0)), BATCH)
    leaves = (state.params, state.opt_state, metrics["loss"])
    return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.tree.map(np.asarray, leaves))


@pytest.mark.some_cases(1)  # the other number is that of a device which has no samples of its own
@pytest.mark.parametrize(("microbatches", "samples"), [(4, 2), (2, 8)])
def test_a_device_computes_its_own_samples_outside_of_the_layers_where_stages_divide_microbatches(
    microbatches: int, samples: int
) -> None:
    """Of 16 samples, 8 belong to each of two groups of 4 stages: a device has the logits of 2 of these, or of all 8."""

    def init_params(key: jax.Array) -> Any:
        return {"table": jax.random.normal(key, (50, 16)), "layers": jax.random.normal(key, (4, 16, 16)) / 4}

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (x + jax.numpy.tanh(x @ w), None), params["table"][batch], params["layers"])
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["table"].T, batch).mean(-1), {}

    batch = np.random.default_rng(0).integers(0, 50, (16, 12)).astype(np.int32)
    layout = outlay.Layout([("params.layers", outlay.layout.pipeline("stage", microbatches=microbatches))])
    program = outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init_params, OPTIMIZER),
        batch,
        layout=layout + outlay.data_parallel(),
        mesh=outlay.mesh(stage=4, data=2),
    )
    logits = {int(each) for each in re.findall(r"f32\[(\d+),12,50\]", program.compiled.as_text())}
    assert logits == {samples}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("stages", "repeats", "most"), [(4, 1, 4), (4, 3, 8), (2, 2, 4), (8, 2, 18)])
def test_layers_are_exchanged_once_and_read_where_they_are_used(stages: int, repeats: int, most: int) -> None:
    """Layers much larger than what they compute on: nothing gathers them, and no tick keeps them for itself.

    What the product takes is computed of the layer alone, as a cast is, and is not kept either. A step holds `most`
    times the layers of a stage: gradients, what is updated, and what is packed for the others.
    """
    num, width, samples = 2 * stages * repeats, 256, 64

    def init_params(key: jax.Array) -> Any:
        return {"layers": jax.random.normal(key, (num, width, width)) / width}

    def layer(x: jax.Array, w: jax.Array) -> Any:
        return x + jax.numpy.sin(x @ jax.numpy.tanh(w)), None

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        return (jax.lax.scan(layer, batch, params["layers"])[0] ** 2).mean(-1), {}

    batch = np.random.default_rng(0).normal(size=(samples, width)).astype(np.float32)
    layout = outlay.Layout([("params.layers", outlay.layout.pipeline("stage", microbatches=8, repeats=repeats))])
    program = outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init_params, OPTIMIZER),
        batch,
        layout=layout + outlay.data_parallel(),
        mesh=outlay.mesh(stage=stages, data=8 // stages),
    )
    state = program.init(jax.random.key(0))
    params = jax.tree.map(np.asarray, state.params)
    gradient = jax.jit(jax.grad(lambda params: loss(params, batch, None)[0].mean()))(params)["layers"]
    state, _ = program(state, batch)
    np.testing.assert_allclose(state.params["layers"], params["layers"] - 0.1 * gradient, rtol=1e-5, atol=1e-7)
    moved = re.findall(rf"= \(?f32\[[\d,]*{width},{width}\].* (all-gather|all-to-all)\(", program.compiled.as_text())
    assert set(moved) == ({"all-to-all"} if repeats > 1 else set())
    of_stage = num // stages * width * width * 4
    assert program.compiled.memory_analysis().temp_size_in_bytes < most * of_stage
