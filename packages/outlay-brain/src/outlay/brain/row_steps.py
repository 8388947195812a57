"""The steps of a module that must do for some of its neurons what they do for all, where a layout splits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from outlay.brain.module import Module, Shape, State
from outlay.brain.neuron import Neuron
from outlay.brain.neuron_settings import SETTINGS
from outlay.brain.registry import is_outlays
from outlay.graph import RowStep


def row_steps(
    name: str, module: Module, state: State, read: Mapping[str, Shape], dtypes: Mapping[str, Any], dt: float
) -> list[RowStep]:
    """Return the step of a user's module, or of a user's soma; Outlay's own are known to do so.

    Args:
        name: the name of the module.
        module: the module.
        state: shapes and dtypes of its state.
        read: the shape that arrives at each port.
        dtypes: the dtype of each port.
        dt: the duration of a step in ms.
    """
    if isinstance(module, Neuron):
        return [] if is_outlays(module.soma) else [_step_of_soma(f"{name}.soma", module, state, dt)]
    if is_outlays(module) or not module.by_neuron:
        return []

    def step(state: Any, inputs: Any) -> Any:
        return module.step(state, inputs, dt=dt)

    inputs = {port: jax.ShapeDtypeStruct(shape, dtypes[port]) for port, shape in read.items()}
    return [RowStep(name, step, state, inputs, tuple(module.by_neuron), rows="neurons")]


def _step_of_soma(where: str, neurons: Neuron, state: State, dt: float) -> RowStep:
    settings = state.get(SETTINGS, {}).get("soma", {})

    def fire(states: Any, current: Any) -> Any:
        own, of_soma = states
        this = neurons.with_settings({SETTINGS: {"soma": of_soma}} if of_soma else {})
        return this.fire(own, current, dt=dt)

    current = jax.ShapeDtypeStruct(state["inhibitory"].shape, state["synapses"]["kernel"].dtype)
    patterns = (*(f"0.{leaf}" for leaf in neurons.soma.by_neuron), "1.**")
    return RowStep(where, fire, (state["soma"], settings), current, patterns, given_has_rows=True, rows="neurons")
