import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

OPTIMIZER = optax.sgd(1.0, momentum=0.9)  # the first step changes a parameter by its gradient
RNG = np.random.default_rng(0)
BATCH = {name: RNG.normal(size=(48, size)).astype(np.float32) for name, size in {"x": 16, "y": 8}.items()}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in {"w": (16, 8), "b": (8,)}.items()}
NUM_PARAMS = 16 * 8 + 8

MESHES = {"data": {"data": 8}, "data and model": {"data": 4, "model": 2}, "model": {"model": 8}}
LAYOUTS = {
    "dp": outlay.data_parallel(),
    "zero2": outlay.zero2(min_size=2) + outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=2) + outlay.data_parallel(),
}
ON_NEWEST_JAX = {"dp": ["data"], "zero2": ["data and model"], "fsdp": ["data and model"]}
NOT_THERE = pytest.mark.any_jax
NO_BATCH_SPLIT = outlay.Layout([("params.w", P(None, "model")), ("batch.**", outlay.replicate()), outlay.replicate()])


def dense(params, batch, keys):
    return ((batch["x"] @ params["w"] + params["b"][None] - batch["y"]) ** 2).mean(1), {}


def recurrent(params, batch, keys):
    """Its carry starts from zeros, which belong to no device: `check_vma` refuses that, wrongly."""

    def cell(hidden, _):
        return jnp.tanh(hidden @ params["w"].T @ params["w"] + batch["y"]), None

    hidden, _ = jax.lax.scan(cell, jnp.zeros((batch["y"].shape[0], 8)), None, length=2)
    return hidden.mean(1), {}


def program(layout, *, loss=dense, axes="data", accumulate=1, batch=None, params=None):
    init = outlay.init_state(lambda key: jax.tree.map(jnp.asarray, params or PARAMS), OPTIMIZER)
    step, mesh = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate), outlay.mesh(**MESHES[axes])
    return outlay.program(step, init, batch or BATCH, layout=layout, mesh=mesh, mode="manual")


def gradient_of(built):
    """What one step took off each parameter."""
    state, _ = built(built.init(jax.random.key(0)), BATCH)
    return jax.tree.map(lambda before, after: before - np.asarray(after), PARAMS, state.params)


def one_device_gradient(loss):
    return jax.grad(lambda params: loss(params, BATCH, None)[0].mean())(PARAMS)


def is_checked(built):
    """Whether JAX checks what varies over devices, in the one region where gradients are taken and summed."""
    step = built.step_in("manual")
    jaxpr = jax.make_jaxpr(step)(built.state_shapes, built.batch_shapes)
    (region,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map")
    return region.params["check_vma"]


@pytest.mark.some_cases(1, newest=1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        *(
            pytest.param(layout, axes, id=f"{name}, {axes}", marks=[] if axes in ON_NEWEST_JAX[name] else NOT_THERE)
            for name, layout in LAYOUTS.items()
            for axes in ("data", "data and model")
        ),
        pytest.param(NO_BATCH_SPLIT, "model", id="no batch split, model"),
    ],
)
def test_a_gradient_is_one_devices_and_not_as_many_times_that_as_there_are_devices(layout, axes):
    built = program(layout, axes=axes)
    assert is_checked(built)
    got, expected = gradient_of(built), one_device_gradient(dense)
    for name, want in expected.items():
        assert np.linalg.norm(got[name]) / np.linalg.norm(want) == pytest.approx(1.0, abs=1e-5)
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough  # others run above
@pytest.mark.any_jax
@pytest.mark.compiles
@pytest.mark.parametrize("layout", ["zero2", *(pytest.param(name, marks=NOT_THERE) for name in ("dp", "fsdp"))])
def test_a_model_that_the_check_refuses_runs_without_it_and_gives_the_same(layout):
    built = program(LAYOUTS[layout], loss=recurrent)
    assert not is_checked(built)
    got, expected = gradient_of(built), one_device_gradient(recurrent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


def all_reduced(built):
    """The types of what the lowered step all-reduces, in order."""
    text = built.lowered.as_text()
    return sorted(re.findall(r'"stablehlo\.all_reduce".*?\}\) : \(tensor<(.*?)>\)', text, re.DOTALL))


def num_of(built, collective):
    return built.lowered.as_text().count(f"stablehlo.{collective}")


def test_gradients_of_small_whole_leaves_are_summed_in_one_flat_collective():
    for accumulate in (1, 3):
        built = program(LAYOUTS["dp"], accumulate=accumulate)
        assert all_reduced(built) == [f"{NUM_PARAMS + 2}xf32"]  # with the sums of losses and of weights
        assert num_of(built, "all_gather") == num_of(built, "reduce_scatter") == 0


def test_split_leaves_are_gathered_once_and_their_gradients_scattered():
    built = program(LAYOUTS["fsdp"])
    assert num_of(built, "all_gather") == num_of(built, "reduce_scatter") == len(PARAMS)
    assert all_reduced(built) == ["2xf32"]


def test_zero2_gathers_no_parameter_for_the_gradient_and_scatters_the_gradients():
    built = program(LAYOUTS["zero2"])
    assert num_of(built, "reduce_scatter") == len(PARAMS)
    assert num_of(built, "all_gather") == 0
    assert all_reduced(built) == ["2xf32"]


@pytest.mark.any_jax
def test_accumulation_that_does_not_divide_says_what_each_device_takes():
    built = program(LAYOUTS["dp"], accumulate=4)  # 48 divide by 4, but the 6 of a device do not
    with pytest.raises(
        outlay.errors.ProgramError,
        match=r"each of 8 devices along 'data' takes 48/8 = 6 samples, and the numbers that follow are one device's\n"
        r"a batch of 6 samples cannot be split into 4 equal microbatches.*\n  fix: accumulate=3 or accumulate=6",
    ):
        built.lowered  # noqa: B018 - a property that traces


@pytest.mark.any_jax
def test_a_batch_split_otherwise_than_by_samples_is_refused():
    for x, y in ((P(None, "data"), P("data")), (P("data"), outlay.replicate())):
        layout = outlay.Layout([("batch.x", x), ("batch.y", y), outlay.replicate()])
        with pytest.raises(
            outlay.errors.ProgramError,
            match=r"every leaf of the batch must be split alike.*\n  batch\.x: .*\n  batch\.y: ",
        ) as caught:
            program(layout).lowered  # noqa: B018
        assert "fix: outlay.data_parallel() for the batch, or mode='auto'" in str(caught.value)


@pytest.mark.thorough  # test_state_trees.py has empty subtrees
@pytest.mark.any_jax
@pytest.mark.compiles
def test_parameters_may_be_in_containers_without_leaves():
    """As layers without parameters give."""

    def loss(params, batch, keys):
        (), (w,) = params["layers"]
        return ((batch["x"] @ w - batch["y"]) ** 2).mean(1), {}

    params = {"layers": [(), (PARAMS["w"],)]}
    expected = jax.grad(lambda params: loss(params, BATCH, None)[0].mean())(params)
    for layout in LAYOUTS.values():
        built = program(layout, loss=loss, params=params)
        state, _ = built(built.init(jax.random.key(0)), BATCH)
        got = PARAMS["w"] - np.asarray(state.params["layers"][1][0])
        np.testing.assert_allclose(got, expected["layers"][1][0], rtol=1e-5, atol=1e-5)
