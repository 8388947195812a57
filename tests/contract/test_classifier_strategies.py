"""Data parallel and FSDP training of a 784-512-10 classifier; placement, bytes, numbers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.contract.placed_as_planned import assert_placed_as_planned, num_collectives

import outlay
from outlay.models.classifiers import classifier

OPTIMIZER = optax.adamw(1e-3)
BATCH = {"x": np.ones((128, 784), np.float32), "y": np.zeros(128, np.int32)}


def init(key: Any) -> Any:
    normal = jax.nn.initializers.lecun_normal()
    first, second = jax.random.split(key)
    params = {
        "input": {"kernel": normal(first, (784, 512)), "bias": jnp.zeros(512)},
        "output": {"kernel": normal(second, (512, 10)), "bias": jnp.zeros(10)},
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def step(state: Any, batch: Any) -> tuple[Any, Any]:
    def loss_of(params: Any) -> Any:
        hidden = jax.nn.relu(batch["x"] @ params["input"]["kernel"] + params["input"]["bias"][None])
        logits = hidden @ params["output"]["kernel"] + params["output"]["bias"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}


def make(layout: outlay.Layout) -> outlay.Program:
    return outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(data=8))


@pytest.fixture(scope="module")
def dp() -> outlay.Program:
    return make(outlay.data_parallel())


@pytest.fixture(scope="module")
def fsdp() -> outlay.Program:
    return make(outlay.fsdp(min_size=2**4) + outlay.data_parallel())


def bytes_of(plan: outlay.layout.Plan, root: str) -> tuple[int, int]:
    """Bytes in all and a device, of the leaves under a root."""
    leaves = [leaf for leaf in plan.state if leaf.path.startswith(root)]
    return sum(leaf.bytes_total for leaf in leaves), sum(leaf.bytes_per_device for leaf in leaves)


def bytes_held(tree: Any, device: int) -> int:
    """Bytes of a tree that one device really holds."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device.id == device)


def test_data_parallel_keeps_every_leaf_whole(dp: outlay.Program) -> None:
    assert {leaf.spec for leaf in dp.plan.state} == {P()}
    assert {leaf.num_copies for leaf in dp.plan.state} == {8}
    state, _ = dp(dp.init(jax.random.key(42)), BATCH)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    assert num_collectives(dp) > 0


def test_fsdp_splits_kernels_and_the_input_bias(fsdp: outlay.Program) -> None:
    specs = {leaf.path: leaf.spec for leaf in fsdp.plan.state if leaf.path.startswith("params.")}
    assert specs == {
        "params.input.bias": P("data"),
        "params.input.kernel": P("data", None),
        "params.output.bias": P(),
        "params.output.kernel": P("data", None),
    }


def test_adam_moments_alike_and_counters_whole(fsdp: outlay.Program) -> None:
    plan = fsdp.plan
    for moment in ("mu", "nu"):
        for path in ("input.bias", "input.kernel", "output.bias", "output.kernel"):
            assert plan[f"opt_state.0.{moment}.{path}"].spec == plan[f"params.{path}"].spec
    assert plan["opt_state.0.count"].spec == P()
    state, _ = fsdp(fsdp.init(jax.random.key(42)), BATCH)
    assert_placed_as_planned(state, plan)


def test_global_shapes_are_unchanged(fsdp: outlay.Program) -> None:
    state = fsdp.init(jax.random.key(42))
    expected = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(init, jax.random.key(42)))
    assert jax.tree.map(lambda leaf: leaf.shape, state) == expected
    state, _ = fsdp(state, BATCH)
    assert jax.tree.map(lambda leaf: leaf.shape, state) == expected


def test_bytes_a_device(dp: outlay.Program, fsdp: outlay.Program) -> None:
    assert bytes_of(dp.plan, "params.") == (1_628_200, 1_628_200)
    assert bytes_of(dp.plan, "opt_state.") == (3_256_404, 3_256_404)
    assert bytes_of(fsdp.plan, "params.") == (1_628_200, 203_560)
    assert bytes_of(fsdp.plan, "opt_state.") == (3_256_404, 407_124)
    state = fsdp.init(jax.random.key(42))
    assert {bytes_held(state["params"], device) for device in range(8)} == {203_560}
    assert {bytes_held(state["opt_state"], device) for device in range(8)} == {407_124}


def test_a_donated_state_used_again_is_an_error_that_names_the_leaves(fsdp: outlay.Program) -> None:
    state = fsdp.init(jax.random.key(42))
    fsdp(state, BATCH)
    with pytest.raises(
        outlay.errors.ProgramError, match=r"13 leaves are gone: .*opt_state\.0\.mu\.input\.kernel.*\n.*fix: use"
    ):
        fsdp(state, BATCH)


NUM_STEPS = 3

# Adam divides a gradient by its own size, which turns the rounding of one near zero (some 1e-9) into a whole step; with
# this epsilon it stays rounding.
COMPARED = optax.adamw(1e-3, eps=1e-6)
STRATEGIES = {
    "dp": outlay.data_parallel(),
    "zero1": outlay.zero1(min_size=2**4) + outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=2**4) + outlay.data_parallel(),
}

init_classifier, classifier_loss = classifier((784, 512, 10))  # float32, no dropout


def random_batch() -> Any:
    rng = np.random.default_rng(42)
    images, labels = rng.normal(size=(128, 784)), rng.integers(0, 10, 128)
    return {"image": images.astype(np.float32), "label": labels.astype(np.int32)}


@functools.cache
def make_trained(strategy: str, mode: Any) -> outlay.Program:
    """Compiled once for all tests; each strategy and each mode once in one batch, and once in four microbatches."""
    accumulate = 4 if (mode == "manual") == (strategy == "zero1") else 1
    return outlay.program(
        outlay.train_step(classifier_loss, COMPARED, accumulate=accumulate),
        outlay.init_state(init_classifier, COMPARED),
        random_batch(),
        layout=STRATEGIES[strategy],
        mesh=outlay.mesh(data=8),
        mode=mode,
    )


make_state = jax.jit(outlay.init_state(init_classifier, COMPARED))


def first_state() -> Any:
    """Made anew each time, since a step takes its state for good."""
    return jax.device_get(make_state(jax.random.key(42)))


def started(program: outlay.Program) -> Any:
    return outlay.arrays.put(first_state(), program.plan, program.mesh)


@pytest.fixture(scope="module")
def one_device() -> Any:
    """The states and losses of each step by plain JAX on one device, in one batch."""
    step, states, losses = jax.jit(outlay.train_step(classifier_loss, COMPARED)), [], []
    state = first_state()
    for _ in range(NUM_STEPS):
        state, metrics = step(state, random_batch())
        states.append(state)
        losses.append(float(metrics["loss"]))
    return states, losses


@pytest.mark.thorough  # test_layouts.py has each strategy with smaller models
@pytest.mark.parametrize("mode", ["auto", "manual"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_agrees_with_one_device(strategy: str, mode: str, one_device: Any) -> None:
    states, expected = one_device
    program, losses = make_trained(strategy, mode), []
    state = started(program)
    for _ in range(NUM_STEPS):
        state, metrics = program(state, random_batch())
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    params = jax.device_get((state.params, states[-1].params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *params)


@pytest.mark.thorough  # test_modes.py has layouts by hand
def test_collectives_by_hand() -> None:
    """Data parallel all-reduces only, all in one; FSDP gathers and scatters each parameter that is split."""
    counts = {}
    for strategy in ("dp", "fsdp"):
        text = make_trained(strategy, "manual").compiled.as_text()
        counts[strategy] = {name: text.count(f" {name}(") for name in ("all-reduce", "all-gather", "reduce-scatter")}
    assert counts["dp"] == {"all-reduce": 1, "all-gather": 0, "reduce-scatter": 0}
    assert counts["fsdp"] == {"all-reduce": 1, "all-gather": 3, "reduce-scatter": 3}  # the last bias is whole


@pytest.mark.thorough  # test_layouts.py compares gradients
def test_the_gradient_is_not_multiplied_by_the_number_of_devices(one_device: Any) -> None:
    """After one step the first moment of Adam is a tenth of the gradient: its norm tells."""
    (expected, *_), _ = one_device
    for mode in ("auto", "manual"):
        program = make_trained("fsdp", mode)
        state, _ = program(started(program), random_batch())
        norms = [float(optax.tree.norm(s.opt_state[0].mu)) for s in (state, expected)]
        assert norms[0] / norms[1] == pytest.approx(1.0, abs=1e-5)
