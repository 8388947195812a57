"""Recordings of a run: which leaves, and their rows by address, in memory or on disk as the run goes."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from outlay.arrays.gather_scatter import gather
from outlay.core.error_types import DataError, OutlayError, OutputError, ProgramError, message
from outlay.core.output_file import real_path
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.program.program import Program
from outlay.train.checkpoint.array_files import unpadded_state
from outlay.train.checkpoint.select_leaves import matching

STEPS = "steps"
"""The name of the array of steps in a recording on disk; it is no address, since it has neither dot nor colon."""

Rows = Mapping[str, np.ndarray]
RowTypes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""The shape and dtype of a row, by address."""


class Recording(Mapping[str, np.ndarray]):
    """Recorded arrays by address: `recording["params.dense.bias"]` is (rows, 64), one row for each recorded step.

    Attributes:
        steps: the step of each row, counted from 0; rows hold what there was after it.
        dt: the time of a step in ms; 1 where steps have no time, as those of a training.
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
        """Open a recording on disk, as a run writes it; each array is read when it is asked for.

        Args:
            path: the folder `recording.zarr`.

        Raises:
            DataError: the folder holds no recording.
        """
        try:
            facts = json.loads((Path(path) / "zarr.json").read_text(encoding="utf-8"))["attributes"]
            dt, names = float(facts["dt"]), [str(name) for name in facts["addresses"]]
            if any("/" in name or name.startswith(".") for name in names):  # such a file may come from anywhere
                raise ValueError("an address leads out of the folder")
            root = real_path(path)
            steps = open_array(root / STEPS).read().result()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is no recording of a run\n  fix: the folder recording.zarr of a run") from error
        readers = {name: (lambda name=name: open_array(root / name).read().result()[: len(steps)]) for name in names}
        return cls(np.asarray(steps), dt, readers)


class RecordedLeaves:
    """The leaves of a program's state that are recorded, every so many steps.

    Args:
        program: the program.
        patterns: of their paths, such as `params.**.bias`. Random keys are no numbers, and are never recorded.
        stride: after how many steps.

    Attributes:
        types: the shape and dtype of each, by path.

    Raises:
        ProgramError: the stride is no number of steps, or a pattern matches nothing; all of them are listed.
    """

    def __init__(self, program: Program, patterns: str | Sequence[str], stride: int) -> None:
        if not isinstance(stride, int) or isinstance(stride, bool) or stride < 1:
            raise ProgramError(f"stride={stride!r}: steps are recorded 1 step or more apart")
        self._program, self._stride = program, stride
        self.types: RowTypes = {}
        if not patterns:
            return
        leaves = {
            path: leaf
            for path, leaf in flatten_paths(unpadded_state(program))[0]
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        }
        paths, problems = matching(patterns, leaves, "record=")
        if problems:
            headline = f"{counted(len(problems), 'pattern')} of what to record cannot be used"
            raise ProgramError(message(headline, problems))
        self.types = {path: (leaves[path].shape, np.dtype(leaves[path].dtype)) for path in paths}

    def of(self, state: Any, step: int) -> dict[str, Any]:
        """Return copies of the leaves after a step, counted from 1; nothing where the step is not recorded."""
        if not self.types or step % self._stride:
            return {}
        leaves = dict(flatten_paths(self._program.crop(state))[0])
        return {path: _copy(leaves[path]) for path in self.types}

    def next_step(self, step: int) -> int:
        """Return the next recorded step after this one; no step at all, `sys.maxsize`, where nothing is recorded."""
        return step + self._stride - step % self._stride if self.types else sys.maxsize


def _copy(leaf: Any) -> Any:
    """Copy a leaf, since the next call uses up what it is given; on its devices, so that nobody waits for it."""
    device = next(iter(leaf.sharding.device_set))
    if leaf.sharding.memory_kind != device.default_memory().kind:  # computations do not read the host's memory
        return gather(leaf)
    return jnp.copy(leaf)


class Recorder(Protocol):
    """Where recorded rows go.

    Attributes:
        num_rows: how many rows there are.
    """

    num_rows: int

    def append(self, steps: np.ndarray, rows: Rows) -> None:
        """Add one row of each address for each step."""
        ...

    def recording(self) -> Recording:
        """Return what there is so far."""
        ...


class MemoryRecorder:
    """Collects rows in memory.

    Args:
        types: the shape and dtype of a row, by address; without any, nothing is kept.
        dt: the time of a step in ms.
    """

    def __init__(self, types: RowTypes, dt: float) -> None:
        self.num_rows = 0
        self._dt = dt
        self._steps: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._rows = {name: [np.zeros((0, *shape), dtype)] for name, (shape, dtype) in types.items()}

    def append(self, steps: np.ndarray, rows: Rows) -> None:
        """Add one row of each address for each step."""
        if not len(steps) or not self._rows:
            return
        self.num_rows += len(steps)
        self._steps.append(steps)
        for name, parts in self._rows.items():
            parts.append(rows[name])

    def recording(self) -> Recording:
        """Return what there is so far."""
        whole = {name: np.concatenate(rows) for name, rows in self._rows.items()}
        return Recording(np.concatenate(self._steps), self._dt, {n: (lambda a=a: a) for n, a in whole.items()})


class ZarrRecorder:
    """Writes rows to a Zarr group with one array an address.

    After each `append` its rows are on disk, so that a run that ends early leaves them.

    Args:
        path: the folder, made anew unless it is continued.
        types: the shape and dtype of a row, by address.
        dt: the time of a step in ms.
        keep_before: continue the recording in the folder, and drop its rows of this step and later ones.
        keep_rows: also drop all rows but the first so many: rows that waited for an event are written late.

    Raises:
        OutputError: the folder exists already, holds no recording to continue, or cannot be written to.
    """

    def __init__(
        self,
        path: Path,
        types: RowTypes,
        dt: float,
        *,
        keep_before: int | None = None,
        keep_rows: int | None = None,
    ) -> None:
        self._path = path
        with self._as_output_error("cannot be made"):
            self._path = real_path(path)
        self.num_rows = 0
        if keep_before is None:
            with self._as_output_error("cannot be made"):
                self._arrays = _create_group(self._path, types, dt)
        elif not self._path.is_dir():
            raise OutputError(f"{path}, which the run recorded to, is gone\n  fix: put it back, or begin the run anew")
        else:
            num_rows = int(np.searchsorted(Recording.read(self._path).steps, keep_before))
            self.num_rows = num_rows if keep_rows is None else min(num_rows, keep_rows)
            with self._as_output_error("cannot be continued"):
                self._arrays = {name: open_array(self._path / name, write=True) for name in (*types, STEPS)}
                for name, array in self._arrays.items():
                    shape = (self.num_rows, *array.shape[1:])
                    self._arrays[name] = array.resize(exclusive_max=shape, shrink_only=True).result()

    def append(self, steps: np.ndarray, rows: Rows) -> None:
        """Add one row of each address for each step.

        Raises:
            OutputError: they cannot be written; the rows before them are there.
        """
        if not len(steps):
            return
        start, end = self.num_rows, self.num_rows + len(steps)
        with self._as_output_error(f"cannot be written on after {counted(start, 'row')}, which are there"):
            # The steps last: their number says how many rows are whole.
            for name in (*(name for name in self._arrays if name != STEPS), STEPS):
                values = steps if name == STEPS else rows[name]
                grown = self._arrays[name].resize(exclusive_max=(end, *values.shape[1:]), expand_only=True).result()
                grown[start:end].write(values).result()
                self._arrays[name] = grown
        self.num_rows = end

    def recording(self) -> Recording:
        """Return what is on disk so far; its arrays are read when they are asked for."""
        return Recording.read(self._path)

    @contextlib.contextmanager
    def _as_output_error(self, what: str) -> Iterator[None]:
        """Turn a fault of the file system, or what TensorStore makes of one, into an error of ours."""
        try:
            yield
        except OutlayError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("[")[0].strip()
            raise OutputError(
                f"the recording {self._path} {what}: {reason}\n  fix: make room or give permission, or another folder"
            ) from error


def _create_group(path: Path, types: RowTypes, dt: float) -> dict[str, Any]:
    if path.exists():
        raise OutputError(f"{path} exists, and a recording would replace it\n  fix: another path, or remove it")
    path.mkdir(parents=True)
    about = {"zarr_format": 3, "node_type": "group", "attributes": {"dt": dt, "addresses": list(types)}}
    (path / "zarr.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    arrays = {name: create_array(path / name, shape, dtype) for name, (shape, dtype) in types.items()}
    return {**arrays, STEPS: create_array(path / STEPS, (), np.dtype(np.int64))}


_BYTES_A_CHUNK = 2**22
"""What is read at once; large enough to read fast, small enough to hold."""


def open_array(path: Path, *, write: bool = False) -> Any:
    """Open an array on disk.

    Args:
        path: its folder, of Zarr version 2 or 3.
        write: whether it is to be written too.
    """
    driver = "zarr" if (path / ".zarray").is_file() else "zarr3"
    return _tensorstore().open({"driver": driver, "kvstore": _file(path)}, open=True, read=True, write=write).result()


def create_array(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Make an array of no rows yet, each of this shape."""
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
        raise DataError(
            "Zarr is read and written through TensorStore, which is not installed\n  fix: pip install 'outlay[zarr]'"
        ) from error
    return tensorstore
