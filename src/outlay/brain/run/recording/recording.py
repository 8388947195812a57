"""What was recorded of a run: arrays by address, with the steps that their rows are of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outlay.brain.module import BrainError
from outlay.core.suggest import did_you_mean

STEPS = "steps"
"""The name of the array of steps in a recording on disk; it is no address, since it has neither dot nor colon."""


class Recording(Mapping[str, np.ndarray]):
    """Recorded arrays by address: `recording["A_ex:out_spikes"]` is (rows, 256), one row for each recorded step.

    Attributes:
        steps: the step of each row, counted from 0; rows hold what there was after it.
        times: when that step began, in ms.
        dt: the time of a step in ms.
    """

    def __init__(self, steps: np.ndarray, dt: float, readers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self.steps = steps
        self.dt = dt
        self._readers = dict(readers)

    @property
    def times(self) -> np.ndarray:
        """When the step of each row began, in ms."""
        return self.steps * self.dt

    def __getitem__(self, address: str) -> np.ndarray:
        if address not in self._readers:
            raise KeyError(f"{address} was not recorded: {did_you_mean(address, self._readers)}")
        return self._readers[address]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __repr__(self) -> str:
        return f"Recording({len(self.steps)} rows of {', '.join(self) or 'nothing'})"

    @classmethod
    def read(cls, path: str | Path) -> Recording:
        """A recording on disk, as a run writes it; each array is read when it is asked for.

        Args:
            path: the folder `recording.zarr`.

        Raises:
            BrainError: the folder holds no recording.
        """
        try:
            facts = json.loads((Path(path) / "zarr.json").read_text(encoding="utf-8"))["attributes"]
            dt, names = float(facts["dt"]), [str(name) for name in facts["addresses"]]
            if any("/" in name or name.startswith(".") for name in names):  # such a file may come from anywhere
                raise ValueError("an address leads out of the folder")
            root = Path(path).resolve()
            steps = open_array(root / STEPS).read().result()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrainError(f"{path} is no recording of a Brain\n  fix: the folder recording.zarr of a run") from error
        readers = {name: (lambda name=name: open_array(root / name).read().result()[: len(steps)]) for name in names}
        return cls(np.asarray(steps), dt, readers)


_BYTES_A_CHUNK = 2**22
"""What is read at once; large enough to read fast, small enough to hold."""


def open_array(path: Path, *, write: bool = False) -> Any:
    """An array on disk.

    Args:
        path: its folder, of Zarr version 2 or 3.
        write: whether it is to be written too.
    """
    driver = "zarr" if (path / ".zarray").is_file() else "zarr3"
    return _tensorstore().open({"driver": driver, "kvstore": _file(path)}, open=True, read=True, write=write).result()


def create_array(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A new array of no rows yet, each of this shape."""
    rows = max(1, min(1024, _BYTES_A_CHUNK // max(1, math.prod(shape) * dtype.itemsize)))
    metadata = {
        "shape": [0, *shape],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows, *(max(1, n) for n in shape)]}},
        "data_type": dtype.name,
        "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}],
    }
    return _tensorstore().open({"driver": "zarr3", "kvstore": _file(path), "metadata": metadata}, create=True).result()


def _file(path: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{path}/"}


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise BrainError(
            "Zarr is read and written through TensorStore, which is not installed\n  fix: pip install 'outlay[zarr]'"
        ) from error
    return tensorstore
