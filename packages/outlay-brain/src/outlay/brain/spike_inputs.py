"""Check inputs that arrive at ports of spikes: a port of spikes can hold +1, -1 and 0, and would cut other numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from outlay.brain.module import BrainError
from outlay.brain.wiring import Wiring
from outlay.errors import Problem
from outlay.kit import INPUTS, counted

Step = Callable[[Any, Any], Any]


def spike_inputs(wiring: Wiring) -> dict[str, list[str]]:
    """Return the ports of spikes that read an input, `MODULE:PORT`, by the input's name."""
    reading: dict[str, list[str]] = {}
    for name, ports in wiring.reads.items():
        kinds = wiring.blueprint.modules[name].inputs()
        for port, sources in ports.items():
            for source in sources:
                if source.part == INPUTS and kinds[port].kind == "spikes":
                    reading.setdefault(source.port, []).append(f"{name}:{port}")
    return reading


def read_only_as_spikes(wiring: Wiring) -> Collection[str]:
    """Return the inputs that no port reads as numbers."""
    reads = [
        (source.port, wiring.blueprint.modules[name].inputs()[port].kind)
        for name, ports in wiring.reads.items()
        for port, sources in ports.items()
        for source in sources
        if source.part == INPUTS
    ]
    return {name for name, _ in reads} - {name for name, kind in reads if kind != "spikes"}


def check_spikes(wiring: Wiring, inputs: Mapping[str, Any], *, start: int | None = None) -> None:
    """Raise for inputs that are no spikes where ports read spikes.

    Args:
        wiring: the connections of the Brain.
        inputs: arrays by name; those of several steps if `start` is given.
        start: the first of these steps.

    Raises:
        BrainError: some are not; the message lists all.
    """
    problems = []
    for name, ports in spike_inputs(wiring).items():
        values = np.asarray(inputs[name]) if name in inputs else np.zeros(0)
        wrong = np.argwhere(~np.isin(values.astype(np.float32), (-1, 0, 1)))
        if not len(wrong):
            continue
        value, index = values[tuple(wrong[0])], [int(i) for i in wrong[0]]
        at = f" in step {start + index.pop(0)}" if start is not None else ""
        at += f" at [{', '.join(map(str, index))}]" if index else ""
        modules = " and ".join(dict.fromkeys(port.partition(":")[0] for port in ports))
        what = (
            f"it is {value:g}{at} ({counted(len(wrong), 'entry is', 'entries are')} like it), and "
            f"{' and '.join(ports)} {'reads' if len(ports) == 1 else 'read'} spikes: 1, 0, or -1 of an inhibitory "
            "neuron"
        )
        fix = (
            f"graded=True of {modules} (in a file: graded = true), where a number times the kernel is current; or an "
            "encoder such as PoissonSpiker between them"
        )
        problems.append(Problem("input", name, what, fix))
    if problems:
        raise BrainError(f"{counted(len(problems), 'input is', 'inputs are')} no spikes", problems)


def check_spike_dtypes(wiring: Wiring, dtypes: Mapping[str, Any]) -> None:
    """Raise for traced inputs that may hold other numbers than spikes, by their dtypes: their numbers are not known.

    Args:
        wiring: the connections of the Brain.
        dtypes: the dtypes of the traced inputs by name.

    Raises:
        BrainError: a port of spikes reads one that is neither of int8 nor of bool; the message lists all.
    """
    problems = []
    for name, ports in spike_inputs(wiring).items():
        if name not in dtypes or dtypes[name] in _OF_SPIKES:
            continue
        modules = " and ".join(dict.fromkeys(port.partition(":")[0] for port in ports))
        what = (
            f"it is {dtypes[name]}, and {' and '.join(ports)} {'reads' if len(ports) == 1 else 'read'} spikes: other "
            "numbers than 1, 0 and -1 would be cut, and a traced step cannot look for them"
        )
        fix = f'x.astype("int8") if it holds spikes; if it holds numbers, graded=True of {modules}, or an encoder'
        problems.append(Problem("input", name, what, fix))
    if problems:
        raise BrainError(f"{counted(len(problems), 'input', 'inputs')} may be no spikes", problems)


_OF_SPIKES = (np.dtype(np.int8), np.dtype(bool))


def with_spike_dtypes(wiring: Wiring, steps: Mapping[str, Step]) -> dict[str, Step]:
    """Return the steps of the modules, of which each checks the dtypes of the inputs that its ports of spikes read."""
    reading = {port.partition(":")[0] for ports in spike_inputs(wiring).values() for port in ports}
    return {name: _with_dtypes(wiring, name, step) if name in reading else step for name, step in steps.items()}


def _with_dtypes(wiring: Wiring, name: str, step: Step) -> Step:
    sources = wiring.reads[name]

    @functools.wraps(step)
    def checked(state: Any, read: Mapping[str, Sequence[Any]]) -> Any:
        pairs = [pair for port, values in read.items() for pair in zip(sources[port], values, strict=True)]
        check_spike_dtypes(wiring, {source.port: value.dtype for source, value in pairs if source.part == INPUTS})
        return step(state, read)

    return checked
