"""Layouts compute what one device computes: here where the compiler partitions.

Pairs of a model and a layout, chosen in layouts.py: those of the other colour are tried in mode manual, in
test_modes.py. Layouts that split no parameter, other than data parallelism, meet one model.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tests.contract.layouts import LAYOUTS, NamedLayout, pairs_in
from tests.contract.placed_as_planned import assert_placed_as_planned
from tests.contract.small_models import MODELS, SmallModel

import outlay

pytestmark = pytest.mark.newest

TOLERANCE = 1e-5
"""Sums over devices are taken in another order: float32 keeps about 7 digits, and these values are of order one."""

# Linear in the gradients, unlike Adam, which would blow rounding of a gradient near zero up to a whole step. After
# the first step the momentum is the gradient itself.
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
NUM_STEPS = 2


def _step(model: SmallModel) -> Any:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        (loss, predictions), grads = jax.value_and_grad(model.loss, has_aux=True)(state["params"], batch)
        grads = outlay.constrain(grads, "grads", optional=True)
        updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
        new_state = {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}
        return new_state, {"loss": loss, "predictions": predictions}

    return step


def _first_state(model: SmallModel) -> Any:
    params = model.params()
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


@functools.lru_cache
def _one_device_history(name: str) -> list[Any]:
    """State and outputs after each step, computed by plain JAX on one device."""
    model = next(model for model in MODELS if model.name == name)
    step, state, history = jax.jit(_step(model)), _first_state(model), []
    for _ in range(NUM_STEPS):
        state, outputs = step(state, {"x": model.x, "y": model.y})
        history.append(jax.device_get((state, outputs)))
    return history


@pytest.mark.some_cases(10, newest=2)
@pytest.mark.parametrize(("model", "layout"), pairs_in("auto"))
def test_a_layout_computes_what_one_device_computes(model: SmallModel, layout: NamedLayout) -> None:
    batch = {"x": model.x, "y": model.y}
    mesh = outlay.mesh(**layout.axes)
    program = outlay.program(_step(model), lambda key: _first_state(model), batch, layout=layout.of(model), mesh=mesh)
    assert outlay.verify(program, static=True).verdict == "no fault found"
    state = outlay.arrays.put(jax.device_get(_first_state(model)), program.plan, mesh)
    for expected in _one_device_history(model.name):
        state, outputs = program(state, batch)
        assert_placed_as_planned(state, program.plan)
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE),
            (state, outputs),
            expected,
        )


@pytest.mark.any_jax
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.name not in ("replicated", "dp")], ids=lambda x: x.name)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_layouts_that_should_split_the_state_do(model: SmallModel, layout: NamedLayout) -> None:
    plan = layout.of(model).plan(
        _first_state(model),
        outlay.mesh(**layout.axes),
        batch={"x": model.x, "y": model.y},
        intermediates={"grads": model.params()},
    )
    assert any(leaf.is_split for leaf in plan.state), (
        f"{layout.name} splits nothing of {model.name}: it would test nothing"
    )
