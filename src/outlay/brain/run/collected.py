"""What a run of a Brain collects on the host as it goes: how much spiked, its outputs, the time it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.run.activity import Activity

_OUTPUTS, _WEIGHTS, _SECONDS = "outputs/", "weights/", "seconds"


class Collected:
    """Takes what each chunk of steps returned; can be saved, and gone on with in another process.

    Args:
        brain: the Brain.
        shapes: shape and dtype of what its ports and outputs write in some steps, by name.

    Attributes:
        activity: how much spiked.
        weights: some numbers of each kernel before the run, by path.
        seconds: what the steps took that were saved.
    """

    def __init__(self, brain: Brain, shapes: Mapping[str, Any]) -> None:
        ports = brain.wiring.output_ports
        kinds = {f"{module}:{port}": about.kind for module, of in ports.items() for port, about in of.items()}
        spikes = {name: int(np.prod(shapes[name].shape[1:])) for name, kind in kinds.items() if kind == "spikes"}
        self.activity = Activity(spikes, brain.dt)
        self.weights: dict[str, np.ndarray] = {}
        self.seconds = 0.0
        self._outputs = {name: [np.zeros((0, *shapes[name].shape[1:]), shapes[name].dtype)] for name in brain.outputs}

    def add(self, written: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Take what ports and outputs wrote in some steps, by name; the rate of each port in them, in Hz."""
        for name, parts in self._outputs.items():
            parts.append(written[name])
        return self.activity.add({port: written[port] for port in self.activity.num_neurons})

    @property
    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the Brain by name, one entry a step."""
        return {name: np.concatenate(parts) for name, parts in self._outputs.items()}

    def to_arrays(self, seconds: float) -> dict[str, np.ndarray]:
        """All of it, to go on from later.

        Args:
            seconds: what the steps took so far.
        """
        return {
            _SECONDS: np.array(seconds),
            **{_OUTPUTS + name: values for name, values in self.outputs.items()},
            **{_WEIGHTS + path: values for path, values in self.weights.items()},
            **self.activity.to_arrays(),
        }

    def go_on_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Begin with what `to_arrays` gave."""
        self.seconds = float(arrays[_SECONDS])
        # A file knows no bfloat16, only its bytes.
        self._outputs = {n: [arrays[_OUTPUTS + n].view(parts[0].dtype)] for n, parts in self._outputs.items()}
        self.weights = {name.removeprefix(_WEIGHTS): arrays[name] for name in arrays if name.startswith(_WEIGHTS)}
        self.activity.go_on_from(arrays)
