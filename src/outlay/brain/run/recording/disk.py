"""A recording on disk: a Zarr group with one array an address, written chunk by chunk as the run goes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outlay.brain.module import BrainError
from outlay.brain.run.recording.recording import STEPS, Recording, create_array, open_array
from outlay.core.error_types import OutlayError, OutputError
from outlay.core.quantities import counted


class ZarrRecorder:
    """Writes rows to a folder; after each `append` they are on disk, so that a run that ends early leaves them.

    Args:
        path: the folder, made anew unless it is gone on with.
        shapes: the shape and dtype of a row, by address.
        dt: the time of a step in ms.
        after: go on with the recording in the folder after so many steps; what it has of later ones is dropped.

    Raises:
        BrainError: the folder is there already, or has no recording to go on with.
        OutputError: it cannot be written to.
    """

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]], dt: float, *, after: int | None = None
    ) -> None:
        self._path = path
        with self._as_output_error("cannot be made"):
            self._path = path.resolve()
        self._num_rows = 0
        if after is None:
            with self._as_output_error("cannot be made"):
                self._arrays = _made(self._path, shapes, dt)
        elif not self._path.is_dir():
            raise BrainError(f"{path}, which the run recorded to, is gone\n  fix: put it back, or begin the run anew")
        else:
            self._num_rows = int(np.searchsorted(Recording.read(self._path).steps, after))
            with self._as_output_error("cannot be gone on with"):
                self._arrays = {name: open_array(self._path / name, write=True) for name in (*shapes, STEPS)}
                for name, array in self._arrays.items():
                    shape = (self._num_rows, *array.shape[1:])
                    self._arrays[name] = array.resize(exclusive_max=shape, shrink_only=True).result()

    def append(self, steps: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Add one row of each address for each step.

        Raises:
            OutputError: they cannot be written; the rows before them are there.
        """
        if not len(steps):
            return
        start, end = self._num_rows, self._num_rows + len(steps)
        with self._as_output_error(f"cannot be written on after {counted(start, 'row')}, which are there"):
            # The steps last: their number says how many rows are whole.
            for name in (*(name for name in self._arrays if name != STEPS), STEPS):
                values = steps if name == STEPS else rows[name]
                grown = self._arrays[name].resize(exclusive_max=(end, *values.shape[1:]), expand_only=True).result()
                grown[start:end].write(values).result()
                self._arrays[name] = grown
        self._num_rows = end

    def recording(self) -> Recording:
        """What is on disk so far; its arrays are read when they are asked for."""
        return Recording.read(self._path)

    @contextlib.contextmanager
    def _as_output_error(self, what: str) -> Iterator[None]:
        """Have a fault of the file system, or what TensorStore makes of one, told as one of ours."""
        try:
            yield
        except OutlayError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("[")[0].strip()
            raise OutputError(
                f"the recording {self._path} {what}: {reason}\n  fix: make room or give permission, or another folder"
            ) from error


def _made(path: Path, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]], dt: float) -> dict[str, Any]:
    if path.exists():
        raise BrainError(f"{path} exists, and a recording would replace it\n  fix: another path, or remove it")
    path.mkdir(parents=True)
    about = {"zarr_format": 3, "node_type": "group", "attributes": {"dt": dt, "addresses": list(shapes)}}
    (path / "zarr.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    made = {name: create_array(path / name, shape, dtype) for name, (shape, dtype) in shapes.items()}
    return {**made, STEPS: create_array(path / STEPS, (), np.dtype(np.int64))}
