"""Every layout of the transformer trains as one device does, with the kinds of collectives it is known for."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.language_model import language_model
from outlay.program.modes import Mode
from outlay.recipes.lm import lm_layouts

pytestmark = pytest.mark.newest

TOLERANCE = 1e-5
NUM_STEPS = 2

CONFIG = TransformerConfig(32, 32, 2, 4, 2, 8, 64, dtype="float32", loss_chunks=2)
GPT = TransformerConfig(
    *(32, 32, 2, 4, 4, 8, 64),
    tied=True,
    gated=False,
    activation="gelu",
    positions="learned",
    num_positions=16,
    norm="layer",
    biases=True,
    dtype="float32",
    remat="products",
)
# Linear in the gradients, and its momentum is the gradient itself after the first step; see test_layouts.py.
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
BATCH = {"tokens": np.random.default_rng(0).integers(0, 32, size=(8, 16)).astype(np.uint8)}
LAYOUTS, MESHES = lm_layouts(CONFIG)
ALL = {name: (CONFIG, layout, MESHES.get(name, "data=-1")) for name, layout in LAYOUTS.items()}
ALL["gpt fsdp+tp+sp"] = (GPT, lm_layouts(GPT)[0]["fsdp+tp+sp"], "data=-1,model=2")

# On CPU a sum that is scattered is written as a sum and a slice.
COLLECTIVES = {
    "dp": {"all-reduce"},
    "zero1": {"all-reduce", "all-gather"},
    "fsdp": {"all-reduce", "all-gather"},
    "hsdp": {"all-reduce", "all-gather"},
    "tp": {"all-reduce"},
    "fsdp+tp": {"all-reduce", "all-gather"},
    "fsdp+tp+sp": {"all-reduce", "all-gather"},
    "gpt fsdp+tp+sp": {"all-reduce", "all-gather"},
}


def _parts(config: TransformerConfig) -> tuple[Any, Any]:
    """How the model's state is made, and its step."""
    init_params, loss = language_model(config)
    return outlay.init_state(init_params, OPTIMIZER), outlay.train_step(loss, OPTIMIZER)


@functools.cache
def _program(name: str, mode: Mode = "auto") -> outlay.Program:
    config, layout, mesh = ALL[name]
    init, step = _parts(config)
    return outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(mesh), mode=mode)


@functools.cache  # traced once for all layouts
def _init(config: TransformerConfig) -> Any:
    return jax.jit(_parts(config)[0])


def _first_state(config: TransformerConfig) -> Any:
    """Made anew each time, since a step takes its state for good."""
    return jax.device_get(_init(config)(jax.random.key(0)))


@functools.cache
def _one_device(config: TransformerConfig) -> list[Any]:
    step, state, history = jax.jit(_parts(config)[1]), _first_state(config), []
    for _ in range(NUM_STEPS):
        state, metrics = step(state, BATCH)
        history.append(jax.device_get((state.params, state.opt_state, metrics)))
    return history


def _assert_trains_as_one_device(name: str, program: outlay.Program) -> None:
    config, _, _ = ALL[name]
    state = outlay.arrays.put(_first_state(config), program.plan, program.mesh)
    for expected in _one_device(config):
        state, metrics = program(state, BATCH)
        assert_placed_as_planned(state, program.plan)
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE),
            (state.params, state.opt_state, metrics),
            expected,
        )


ON_NEWEST_JAX = {"gpt fsdp+tp+sp"}
"""With every kind of collective, layer norms and no gates; the other layouts are parts of this one, and test_model.py
computes there with gates."""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ON_NEWEST_JAX else pytest.mark.any_jax) for name in ALL]
)
def test_lm_trains_as_on_one_device(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    program = _program(name)
    kinds = r"= .*? (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    assert set(re.findall(kinds, program.compiled.as_text())) == COLLECTIVES[name]
    assert "Involuntary full rematerialization" not in capfd.readouterr().err
    _assert_trains_as_one_device(name, program)


@pytest.mark.thorough  # test_modes.py has small models by hand, test_gather_at_use.py layers in a loop
@pytest.mark.any_jax  # small models train by hand on the newest JAX, and layers in a loop in test_gather_at_use.py
def test_lm_trains_in_mode_manual_as_on_one_device() -> None:
    """Under a layout of which data parallel training and FSDP are parts."""
    _assert_trains_as_one_device("fsdp+tp", _program("fsdp+tp", "manual"))


@pytest.mark.any_jax
def test_sequence_parallelism_splits_the_stream_between_branches_and_nothing_inside() -> None:
    plan = _program("fsdp+tp+sp").plan
    local_shapes = {leaf.path: leaf.local_shape for leaf in plan.of_kind("intermediate")}
    assert local_shapes == {
        "residual": (2, 8, 32),
        "queries": (2, 16, 2, 8),
        "branch_input": (2, 16, 32),
        "branch_output": (2, 16, 32),
        "table": (16, 32),
        "head": (32, 16),
    }
