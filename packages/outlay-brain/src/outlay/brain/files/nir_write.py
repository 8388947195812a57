"""Write a Brain as a graph of NIR."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.delays import NoDelays
from outlay.brain.module import MS_PER_S, BrainError, State
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import LeakySoma
from outlay.brain.synapses import LinearSynapses, TracedSynapses
from outlay.errors import Problem
from outlay.graph import Source
from outlay.kit import INPUTS, counted


def write_nir(brain: Brain, state: State, path: str | os.PathLike) -> None:
    """Write a Brain, with the kernels of a state, as a graph of NIR.

    Leaky neurons become `LIF` nodes, or `CubaLIF` with traced synapses; each connection becomes a `Linear` node with
    its part of the kernel, spikes of inhibitory neurons counted negative, and a `Delay` before it if it takes longer
    than one step. Times are in seconds; potentials and currents stay in mV and pA. NIR knows no step that a connection
    takes: what reads this file back adds it again.

    Args:
        brain: the Brain.
        state: its state, as `Brain.init` or a run returned it.
        path: the file.

    Raises:
        BrainError: something in it that NIR cannot say; everything is listed.
    """
    import nir

    check_sayable(brain)
    nodes: dict[str, Any] = {name: nir.Input({"input": _flat(shape)}) for name, shape in brain.inputs.items()}
    edges: list[tuple[str, str]] = []
    for name, module in brain.modules.items():
        assert isinstance(module, Neuron)
        nodes[name] = _population(module, brain.dt)
        for added, node, joined in _connections(brain, state, name):
            nodes[added] = node
            edges += joined
    for name, (module, port) in brain.wiring.outputs.items():
        # An output may be called like a module, and NIR has one name for all nodes.
        name = name if name not in nodes else f"{name}_output"
        shape = brain.wiring.output_ports[module][port].shape
        assert shape is not None  # it is that of the neurons
        nodes[name] = nir.Output({"output": _flat(shape)})
        edges.append((module, name))
    nir.write(os.fspath(path), nir.NIRGraph(nodes, list(dict.fromkeys(edges)), type_check=False))


def check_sayable(brain: Brain) -> None:
    """Raise if a Brain has anything that NIR cannot express.

    Raises:
        BrainError: something in it is of another kind than NIR's nodes; everything is listed.
    """
    problems = [problem for name in brain.modules for problem in _problems(brain, name)]
    problems += [
        Problem("not in NIR", f"outputs.{name}", f"{module}:{port} is not spikes of neurons", "spikes of neurons")
        for name, (module, port) in brain.wiring.outputs.items()
        if not isinstance(brain.modules[module], Neuron)
    ]
    if problems:
        raise BrainError(f"this Brain cannot be written as NIR: {counted(len(problems), 'problem')}", problems)


def _problems(brain: Brain, name: str) -> Iterator[Problem]:
    """Yield what NIR cannot express of a module."""
    module = brain.modules[name]
    if not isinstance(module, Neuron):
        what = f"NIR has no {type(module).__name__}"
        yield Problem("not in NIR", name, what, "a Brain of leaky neurons, fed with spikes")
        return
    if type(module.soma) is not LeakySoma:
        what = f"its soma is {type(module.soma).__name__}"
        yield Problem("not in NIR", f"{name}.soma", what, "a LeakySoma: no refractory time, a fixed threshold")
    if type(module.synapses) not in (LinearSynapses, TracedSynapses) or getattr(module.synapses, "base", 0):
        what = f"its synapses are {module.synapses}"
        yield Problem("not in NIR", f"{name}.synapses", what, "LinearSynapses, or TracedSynapses with base 0")
    if not isinstance(module.delays, NoDelays):
        what = f"its delays are {type(module.delays).__name__}, which differ from neuron to neuron"
        yield Problem("not in NIR", f"{name}.delays", what, "NoDelays, and delays of whole connections")
    if module.learning_rule is not None:
        what = f"its kernel changes, by {type(module.learning_rule).__name__}"
        yield Problem("not in NIR", f"{name}.learning_rule", what, "None, to write the kernel as it is in the state")
    for source in brain.wiring.reads[name]["in_spikes"]:
        if source.part != INPUTS and source.port != "out_spikes":
            yield Problem("not in NIR", f"{source} -> {name}:in_spikes", "no spikes of neurons", "spikes of neurons")


def _population(module: Neuron, dt: float) -> Any:
    import nir

    def each(value: Any) -> np.ndarray:
        return np.full(module.units, value, np.float32)

    soma, synapses = module.soma, module.synapses
    assert isinstance(soma, LeakySoma)
    membrane: dict[str, Any] = {
        # NIR multiplies the current with r alone, Outlay with tau × resistance.
        "r": each(np.asarray(soma.potential_tau) * np.asarray(soma.resistance)),
        "v_leak": each(soma.potential_rest),
        "v_threshold": each(soma.threshold),
        "v_reset": each(soma.potential_reset),
    }
    if isinstance(synapses, TracedSynapses):
        gain = np.asarray(synapses.scale) / -np.expm1(-dt / np.asarray(synapses.tau))
        times: dict[str, Any] = {
            "tau_mem": each(np.asarray(soma.potential_tau) / MS_PER_S),
            "tau_syn": each(np.asarray(synapses.tau) / MS_PER_S),
        }
        return nir.CubaLIF(**times, **membrane, w_in=each(gain))
    return nir.LIF(tau=each(np.asarray(soma.potential_tau) / MS_PER_S), **membrane)


def _connections(brain: Brain, state: State, name: str) -> Iterator[tuple[str, Any, list[tuple[str, str]]]]:
    """Yield the nodes between a population and its sources, each with the edges that it completes."""
    import nir

    kernel, start = np.asarray(state[name]["synapses"]["kernel"], np.float32), 0
    for number, source in enumerate(brain.wiring.reads[name]["in_spikes"]):
        size = _size(brain, source)
        weight = kernel[:, start : start + size] * _signs(brain, state, source)
        start, linear = start + size, f"{source.port if source.part == INPUTS else source.part}_to_{name}_{number}"
        origin = source.port if source.part == INPUTS else source.part
        # A connection of a Brain takes a step of its own, which NIR does not know.
        if source.latency > 1:
            delay = np.full(size, (source.latency - 1) * brain.dt / MS_PER_S, np.float32)
            yield f"{linear}_delay", nir.Delay(delay), [(origin, f"{linear}_delay")]
            origin = f"{linear}_delay"
        yield linear, nir.Linear(weight), [(origin, linear), (linear, name)]


def _size(brain: Brain, source: Source) -> int:
    shape = (
        brain.inputs[source.port]
        if source.part == INPUTS
        else brain.wiring.output_ports[source.part][source.port].shape
    )
    assert shape is not None
    return math.prod(shape)


def _signs(brain: Brain, state: State, source: Source) -> np.ndarray:
    """Return -1 for the spikes of inhibitory neurons, else 1."""
    if source.part == INPUTS:
        return np.ones(_size(brain, source), np.float32)
    return np.where(np.asarray(state[source.part]["inhibitory"]), -1, 1).astype(np.float32)


def _flat(shape: tuple[int, ...]) -> np.ndarray:
    return np.array([math.prod(shape)])
