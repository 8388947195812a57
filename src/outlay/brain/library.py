"""The modules and components that Outlay brings: importing them gives them their names in files."""

from __future__ import annotations

from types import ModuleType

from outlay.brain import initializers, integrator, kernel_file, neuron, reshape, signal_traces
from outlay.brain.delays import delays, drawn
from outlay.brain.learning_rules import bounded_quadruplet, btsp, hebbian, oja, quadruplet, zenke
from outlay.brain.somas import composed, exponential, izhikevich, leaky
from outlay.brain.spikers import linear, poisson, topological
from outlay.brain.synapses import fading, synapses

LIBRARY: tuple[ModuleType, ...] = (
    *(neuron, linear, poisson, topological, integrator, reshape, signal_traces),
    *(leaky, exponential, izhikevich, composed),
    *(synapses, fading, drawn, delays, zenke, hebbian, oja, quadruplet),
    *(bounded_quadruplet, btsp, initializers, kernel_file),
)
"""The files whose classes have names, in the order in which the reference lists them."""
