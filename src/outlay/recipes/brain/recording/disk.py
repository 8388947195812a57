"""A recording on disk: a Zarr group with one array an address, written chunk by chunk as the run goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outlay.core.errors import BrainError
from outlay.recipes.brain.recording.recording import STEPS, Recording
from outlay.recipes.brain.recording.store import create_array


class ZarrRecorder:
    """Writes rows to a folder; after each `append` they are on disk, so that a run that ends early leaves them.

    Args:
        path: the folder, made anew.
        shapes: the shape and dtype of a row, by address.
        dt: the time of a step in ms.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]], dt: float) -> None:
        self._path = path.resolve()
        if self._path.exists():
            raise BrainError(f"{path} exists, and a recording would replace it\n  cure: another path, or remove it")
        self._path.mkdir(parents=True)
        about = {"zarr_format": 3, "node_type": "group", "attributes": {"dt": dt, "addresses": list(shapes)}}
        (self._path / "zarr.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        self._num_rows = 0
        self._arrays = {name: create_array(self._path / name, shape, dtype) for name, (shape, dtype) in shapes.items()}
        self._arrays[STEPS] = create_array(self._path / STEPS, (), np.dtype(np.int64))

    def append(self, steps: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Add one row of each address for each step."""
        if not len(steps):
            return
        start, self._num_rows = self._num_rows, self._num_rows + len(steps)
        # The steps last: their number says how many rows are whole.
        for name in (*(name for name in self._arrays if name != STEPS), STEPS):
            values = steps if name == STEPS else rows[name]
            shape = (self._num_rows, *values.shape[1:])
            grown = self._arrays[name].resize(exclusive_max=shape, expand_only=True).result()
            grown[start : self._num_rows].write(values).result()
            self._arrays[name] = grown

    def recording(self) -> Recording:
        """What is on disk so far; its arrays are read when they are asked for."""
        return Recording.read(self._path)
