"""Layouts in mode manual, and accumulation and padding in both modes, train as one device does.

The whole product of layout, mode, model, accumulation and uneven batch would be hundreds of compilations, of half a
second each. It is tried in pairs, chosen in layouts.py. Every model meets every layout that splits parameters in one of
the two modes, here in mode manual and in test_layouts.py in mode auto; layouts that split none, other than data
parallelism, meet one model in each. test_lm.py and test_digits.py try the training step in mode auto under every
strategy.

Accumulation and padding change the loop around the collectives and not what they are, so they are tried with the MLP
alone: together under every strategy in one of the modes, and in both where gradients are split; each by itself in both
modes. The MLP has dropout and so notices a sample taken twice, left out, or with another's key. One device's numbers
are always taken without accumulation and without padding, so they share no mistake with what is compared to them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.contract.layouts import LAYOUTS, MODES, NamedLayout, pairs_in
from tests.contract.placed_as_planned import assert_placed_as_planned
from tests.contract.small_models import MODELS, SmallModel

import outlay

pytestmark = pytest.mark.newest

TOLERANCE = 1e-5
NUM_STEPS = 2

# Linear in the gradients, and its momentum is the gradient itself after the first step; see test_layouts.py.
OPTIMIZER = optax.sgd(0.1, momentum=0.9)

MLP = next(model for model in MODELS if model.name == "mlp")
NUM_REAL = 11
"""Samples of the uneven batch; padded to 16, one of eight devices holds one real sample and two hold none."""

STRATEGIES = [layout for layout in LAYOUTS if layout.name not in ("policy", "specs")]


def _sized(num: int) -> SmallModel:
    rng = np.random.default_rng(num)
    x, y = (rng.normal(size=(num, 8)).astype(np.float32) for _ in range(2))
    return dataclasses.replace(MLP, name=f"mlp of {num}", x=x, y=y)


# 96 samples divide by 8 devices and, on each device, by 3 and by 4.
SIZED = {model.name: model for model in (*MODELS, _sized(96), _sized(NUM_REAL))}
BIG, SHORT = _sized(96), _sized(NUM_REAL)


def _batch(model: SmallModel) -> dict[str, np.ndarray]:
    return {"x": model.x, "y": model.y}


def _padded(batch: dict[str, np.ndarray], num: int) -> dict[str, np.ndarray]:
    """Filled up to `num` samples with wild ones of weight zero."""
    num_real = len(batch["x"])
    filled = {
        name: np.concatenate([array, np.full((num - num_real, *array.shape[1:]), 1e3, array.dtype)])
        for name, array in batch.items()
    }
    return {**filled, "weight": (np.arange(num) < num_real).astype(np.float32)}


def _init(model: SmallModel) -> Any:
    return outlay.init_state(lambda key: model.params(), OPTIMIZER)


def _first_state(model: SmallModel) -> Any:
    """Made anew each time, since a step takes its state for good."""
    return jax.device_get(_init(model)(jax.random.key(0)))


@functools.cache
def _one_device(name: str) -> list[Any]:
    """State and metrics after each step, by plain JAX on one device."""
    model, history = SIZED[name], []
    step, state = jax.jit(outlay.train_step(model.losses, OPTIMIZER)), _first_state(model)
    for _ in range(NUM_STEPS):
        state, metrics = step(state, _batch(model))
        history.append(jax.device_get((state.params, state.opt_state, metrics)))
    return history


def _program(model: SmallModel, layout: NamedLayout, mode: Any, batch: Any, accumulate: int) -> outlay.Program:
    step = outlay.train_step(model.losses, OPTIMIZER, accumulate=accumulate)
    mesh = outlay.mesh(**layout.axes)
    return outlay.program(step, _init(model), batch, layout=layout.of(model), mesh=mesh, mode=mode)


def _assert_trains_as_one_device(
    model: SmallModel, layout: NamedLayout, mode: str, *, batch: Any = None, accumulate: int = 1
) -> None:
    batch = _batch(model) if batch is None else batch
    program = _program(model, layout, mode, batch, accumulate)
    state = outlay.arrays.put(_first_state(model), program.plan, program.mesh)
    for expected in _one_device(model.name):
        state, metrics = program(state, batch)
        assert_placed_as_planned(state, program.plan)
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE),
            (state.params, state.opt_state, metrics),
            expected,
        )


DP, FSDP = (next(layout for layout in LAYOUTS if layout.name == name) for name in ("dp", "fsdp"))
in_both_modes = pytest.mark.parametrize(
    ("layout", "mode"), [(DP, "manual"), (FSDP, "auto")], ids=["dp by hand", "fsdp"]
)


def padded_and_accumulated() -> list[Any]:
    """Every strategy in one of the modes, and in both if it splits gradients; of these one each on the newest JAX."""
    cases = []
    for number, layout in enumerate(STRATEGIES):
        splits_gradients = layout.name in ("zero2", "fsdp")
        for mode in MODES if splits_gradients else [MODES[number % 2]]:
            on_newest_jax = (layout.name, mode) in (("zero2", "manual"), ("fsdp", "auto"))
            marks = [] if on_newest_jax else [pytest.mark.any_jax]
            cases.append(pytest.param(layout, mode, id=f"{layout.name}-{mode}", marks=marks))
    return cases


@pytest.mark.some_cases(4, newest=1)
@pytest.mark.parametrize(("model", "layout"), pairs_in("manual"))
def test_every_model_trains_in_mode_manual_as_on_one_device(model: SmallModel, layout: NamedLayout) -> None:
    _assert_trains_as_one_device(model, layout, "manual")


@pytest.mark.thorough  # the next test accumulates as well
@pytest.mark.any_jax  # padded it is accumulated there, too
@in_both_modes
def test_accumulation_sees_every_sample_once(layout: NamedLayout, mode: str) -> None:
    _assert_trains_as_one_device(BIG, layout, mode, accumulate=3)


@pytest.mark.some_cases(1, newest=1)
@pytest.mark.parametrize(("layout", "mode"), padded_and_accumulated())
def test_an_uneven_batch_padded_and_accumulated_equals_the_short_one(layout: NamedLayout, mode: str) -> None:
    """Whole microbatches are padding on some devices; the mean is over what counts in all of them."""
    _assert_trains_as_one_device(SHORT, layout, mode, batch=_padded(_batch(SHORT), 96), accumulate=4)


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@in_both_modes
def test_an_uneven_batch_padded_equals_the_short_one(layout: NamedLayout, mode: str) -> None:
    _assert_trains_as_one_device(SHORT, layout, mode, batch=_padded(_batch(SHORT), 16))


@pytest.mark.any_jax
def test_the_models_notice_dropout() -> None:
    """Else the product above would say nothing about keys."""
    params, keys = MLP.params(), jax.random.split(jax.random.key(0), len(MLP.x))
    with_keys, without = (MLP.losses(params, _batch(MLP), keys)[0] for keys in (keys, None))
    assert np.min(np.abs(with_keys - without)) > 1e-3


@pytest.mark.any_jax
def test_the_layouts_that_should_split_gradients_by_hand_do() -> None:
    """Else every row of the product in mode manual would be data parallel."""
    for layout in LAYOUTS:
        program = _program(MLP, layout, "manual", _batch(MLP), 1)
        kernel, grads = program.plan["params.up"], program.plan.of_kind("intermediate")
        expected = {"replicated": P(), "dp": P(), "zero1": P(), "zero2": P(), "tp": P(None, "model")}
        assert kernel.spec == expected.get(layout.name, kernel.spec)
        assert kernel.is_split is (layout.name not in ("replicated", "dp", "zero1", "zero2"))
        assert any(leaf.is_split for leaf in grads) is (layout.name == "zero2")
