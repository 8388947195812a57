"""What is run in any number of processes: a graph that is no Brain, and a Brain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tests.contract.ab_reference import ab_brain, recorded, recorded_start
from tests.unit.execute import waves

import outlay
from outlay.execute.rollout import Rollout
from outlay.layout.strategies import by_neuron

Run = tuple[Rollout, Callable[[Any], Any], dict[str, np.ndarray]]
NUM_STEPS = 100


def _waves() -> Run:
    rollout = waves.rollout(far=3)
    return rollout, waves.init_of(rollout.graph), waves.inputs()


def _brain() -> Run:
    brain = ab_brain()
    drive = np.asarray(recorded()["drive"][:NUM_STEPS], np.float32)
    rollout = Rollout(brain.graph, record=("A_ex:out_spikes", "B_in:out_spikes"))
    return rollout, lambda key: recorded_start(brain, recorded()), {"drive": drive}


RUNS: dict[str, Callable[[], Run]] = {"waves": _waves, "brain": _brain}


def by_neuron_program(run: Run) -> tuple[outlay.Program, dict[str, np.ndarray]]:
    """Over all devices of the job."""
    rollout, init, inputs = run
    mesh = outlay.mesh(neurons=jax.device_count())
    return outlay.program(rollout, init, inputs, layout=by_neuron(), mesh=mesh, mode="manual"), inputs


def on_one_device(run: Run) -> Any:
    """State and outputs on one device, on the host."""
    rollout, init, inputs = run
    mesh = outlay.mesh(devices=jax.devices()[:1], all=1)
    program = outlay.program(rollout, init, inputs, layout=waves.WHOLE, mesh=mesh)
    return jax.device_get(program(program.init(jax.random.key(0)), inputs))
