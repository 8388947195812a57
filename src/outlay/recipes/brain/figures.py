"""The pictures of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.picture import draw
from outlay.brain.plots.potentials import potentials_plot
from outlay.brain.plots.raster import raster_plot
from outlay.brain.plots.rates import rates_plot
from outlay.brain.plots.weights import weights_plot
from outlay.recipes.brain.activity import RASTER_MS, population_names

if TYPE_CHECKING:
    from outlay.recipes.brain.brain_run import BrainRun

POTENTIAL = ".potential"


def figures(run: BrainRun) -> dict[str, Figure]:
    """Pictures by name; those that there is nothing to show on are left out.

    Args:
        run: a finished run.
    """
    found = {"graph": draw(run.brain)}
    names = population_names(run.activity.num_neurons)
    num_neurons = {name: run.activity.num_neurons[port] for port, name in names.items()}
    if names and run.num_steps:
        recent = {name: run.activity.recent(port) for port, name in names.items()}
        end = run.num_steps * run.brain.dt
        spikes = {name: (there.times, there.neurons) for name, there in recent.items()}
        found["raster"] = raster_plot(spikes, num_neurons, start=max(0.0, end - RASTER_MS), end=end)
        counts = {name: run.activity.counts(port) for port, name in names.items()}
        found["rates"] = rates_plot(counts, num_neurons, run.brain.dt)
    potentials = {address: np.asarray(run[address]) for address in run.recording if address.endswith(POTENTIAL)}
    if potentials and len(run.times):
        found["potentials"] = potentials_plot(potentials, run.times, list(num_neurons))
    if run.weights:
        found["weights"] = weights_plot(run.weights, list(num_neurons))
    return found
