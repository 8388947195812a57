"""Record leaves of a run's state by address, in memory or on disk while the run goes on."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from outlay.arrays.gather_scatter import gather
from outlay.core.error_types import DataError, OutputError, ProgramError
from outlay.core.input_file import check_folder, read_text
from outlay.core.one_line import OneLine
from outlay.core.output_file import raising, real_path
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.program.program import Program
from outlay.train.checkpoint.array_files import unpadded_state
from outlay.train.checkpoint.select_leaves import matching
from outlay.train.run_arrays import GROUP, STEPS, addresses_in

Rows = Mapping[str, np.ndarray]
"""Rows to record, an array by address, each with as many rows."""
RowTypes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""The shape and dtype of a row, by address."""


class Recording(Mapping[str, np.ndarray]):
    """Recorded arrays by address: `recording["params.dense.bias"]` is (rows, 64), one row for each recorded step.

    Attributes:
        steps: the step of each row, counted from 0; a row has the values after that step.
        dt: the duration of a step in ms; 1 if steps have no duration, as in training.
    """

    def __init__(self, steps: np.ndarray, dt: float, readers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self.steps = steps
        self.dt = dt
        self._readers = dict(readers)

    @property
    def times(self) -> np.ndarray:
        """The start of each row's step, in ms."""
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
        """Open the recording of a run on disk; each array is read when it is accessed.

        Args:
            path: the folder `recording.zarr`.

        Raises:
            DataError: the folder is not a recording, or TensorStore is not installed.
        """
        try:
            facts = json.loads(read_text(Path(path) / GROUP))
            dt, names = float(facts["attributes"]["dt"]), addresses_in(facts)
            root = real_path(path)
            steps = open_array(root / STEPS).read().result()
        except DataError:  # what is lacking is TensorStore
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is not a recording of a run\n  fix: the folder recording.zarr of a run") from error
        # A killed run may leave rows without their step, which is written last: those are not complete.
        readers = {name: (lambda name=name: open_array(root / name).read().result()[: len(steps)]) for name in names}
        return cls(np.asarray(steps), dt, readers)


NOTHING_RECORDED = Recording(np.zeros(0, np.int64), 1.0, {})
"""The recording of a training run that records nothing, as most do."""


class RecordedLeaves:
    """Copy the recorded leaves of a program's state every `stride` steps.

    Args:
        program: the program.
        patterns: path patterns of the leaves, such as `params.**.bias`. PRNG keys are never recorded.
        stride: the number of steps between two recorded steps.

    Attributes:
        types: the shape and dtype of each leaf, by path.

    Raises:
        ProgramError: the stride is less than 1, or patterns match nothing; the message lists all of them.
    """

    def __init__(self, program: Program, patterns: str | Sequence[str], stride: int) -> None:
        if not isinstance(stride, int) or isinstance(stride, bool) or stride < 1:
            raise ProgramError(f"stride={stride!r}: recorded steps must be at least 1 step apart")
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
            raise ProgramError(f"{counted(len(problems), 'pattern')} of what to record cannot be used", problems)
        self.types = {path: (leaves[path].shape, np.dtype(leaves[path].dtype)) for path in paths}

    def of(self, state: Any, step: int) -> dict[str, Any]:
        """Return copies of the leaves after a step, counted from 1; empty if the step is not recorded."""
        if not self.types or step % self._stride:
            return {}
        leaves = dict(flatten_paths(self._program.crop(self._program.arrays_of(state)))[0])
        return {path: _copy(leaves[path]) for path in self.types}

    def next_step(self, step: int) -> int:
        """Return the next recorded step after this one, or `sys.maxsize` if nothing is recorded."""
        return step + self._stride - step % self._stride if self.types else sys.maxsize


def _copy(leaf: Any) -> Any:
    """Copy a leaf, since the next call donates it; the copy stays on the devices, so nothing waits for a transfer."""
    device = next(iter(leaf.sharding.device_set))
    if leaf.sharding.memory_kind != device.default_memory().kind:  # a jitted copy cannot read host memory
        return gather(leaf)
    return jnp.copy(leaf)


class Recorder(Protocol):
    """A sink for recorded rows.

    Attributes:
        num_rows: the number of rows so far.
    """

    num_rows: int

    def append(self, steps: np.ndarray, rows: Rows) -> None:
        """Add one row of each address for each step."""
        ...

    def recording(self) -> Recording:
        """Return the recording so far."""
        ...


class MemoryRecorder(OneLine):
    """Collect rows in memory.

    Args:
        types: the shape and dtype of a row, by address; empty to record nothing.
        dt: the duration of a step in ms.
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
        """Return the recording so far."""
        whole = {name: np.concatenate(rows) for name, rows in self._rows.items()}
        return Recording(np.concatenate(self._steps), self._dt, {n: (lambda a=a: a) for n, a in whole.items()})

    def _in_short(self) -> str:
        return f"{counted(self.num_rows, 'row')} in memory"


class ZarrRecorder(OneLine):
    """Write rows to a Zarr group with one array per address.

    `append` returns when its rows are on disk, so that a run that ends early leaves them.

    Args:
        path: the folder; new unless the recording is continued.
        types: the shape and dtype of a row, by address.
        dt: the duration of a step in ms.
        keep_before: continue the recording in the folder, and drop the rows of this step and later ones.
        keep_rows: also drop all but this many rows: rows that wait for a trigger are written late.
        beside: allow the folder to have files of others, as long as the recording replaces none of them.

    Raises:
        OutputError: the folder already exists, has no recording to continue, or cannot be written to.
    """

    def __init__(
        self,
        path: Path,
        types: RowTypes,
        dt: float,
        *,
        keep_before: int | None = None,
        keep_rows: int | None = None,
        beside: bool = False,
    ) -> None:
        self._path, self.num_rows = path, 0
        with self._as_output_error("cannot be made"):
            self._path = real_path(path)
            if keep_before is None:
                self._arrays = _create_group(self._path, types, dt, beside=beside)
        if keep_before is None:
            return
        if not self._path.is_dir():
            raise OutputError(f"{path}, the recording of the run, is gone\n  fix: restore it, or start a new run")
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
            OutputError: the rows cannot be written; earlier rows are intact.
        """
        if not len(steps):
            return
        start, end = self.num_rows, self.num_rows + len(steps)
        with self._as_output_error(f"cannot be extended beyond its {counted(start, 'row')}"):
            # Write the steps last: their number tells how many rows are complete.
            for name in (*(name for name in self._arrays if name != STEPS), STEPS):
                values = steps if name == STEPS else rows[name]
                grown = self._arrays[name].resize(exclusive_max=(end, *values.shape[1:]), expand_only=True).result()
                grown[start:end].write(values).result()
                self._arrays[name] = grown
        self.num_rows = end

    def recording(self) -> Recording:
        """Return the recording so far; its arrays are read when they are accessed."""
        return Recording.read(self._path)

    def _in_short(self) -> str:
        return f"{counted(self.num_rows, 'row')} in {self._path}"

    def _as_output_error(self, what: str) -> AbstractContextManager[None]:
        """Convert errors of the file system and of TensorStore, whose source locations are left out, to OutputError."""
        fix = "free space or fix the permissions, or use another folder"
        return raising(
            lambda why: OutputError(f"the recording {self._path} {what}: {why.partition('[')[0].strip()}\n  fix: {fix}")
        )


def _create_group(path: Path, types: RowTypes, dt: float, *, beside: bool) -> dict[str, Any]:
    whole = [path / GROUP, *(path / name for name in (STEPS, *types) if not _is_plain_folder(path / name))]
    files = [*whole, *(path / name / GROUP for name in (STEPS, *types))]
    if there := [file for file in (files if beside else [path]) if os.path.lexists(file)]:
        raise OutputError(f"{there[0]} exists, and a recording would replace it\n  fix: another path, or remove it")
    path.mkdir(parents=True, exist_ok=beside)
    about = {"zarr_format": 3, "node_type": "group", "attributes": {"dt": dt, "addresses": list(types)}}
    (path / GROUP).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    arrays = {name: create_array(path / name, shape, dtype) for name, (shape, dtype) in types.items()}
    return {**arrays, STEPS: create_array(path / STEPS, (), np.dtype(np.int64))}


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


_BYTES_A_CHUNK = 2**22
"""The bytes of a chunk: large enough to read fast, small enough to keep in memory."""


def open_array(path: Path, *, write: bool = False) -> Any:
    """Open an array on disk.

    Args:
        path: its folder, of Zarr version 2 or 3.
        write: open it for writing too.
    """
    driver = "zarr" if (path / ".zarray").is_file() else "zarr3"
    if path.is_dir():  # where it is missing, TensorStore says so
        check_folder(path)
    return _tensorstore().open({"driver": driver, "kvstore": _file(path)}, open=True, read=True, write=write).result()


def create_array(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Create an array without rows, whose rows have this shape."""
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
        raise DataError("Zarr needs TensorStore, which is not installed\n  fix: pip install 'outlay[zarr]'") from error
    return tensorstore
