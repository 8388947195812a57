"""Records of bytes: ArrayRecord, read through grain, and TFRecord, which is indexed when it is opened."""

from __future__ import annotations

import bisect
import itertools
import mmap
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from outlay.core.error_types import DataError
from outlay.core.input_file import open_input
from outlay.core.quantities import counted
from outlay.datasets.examples import Examples, files_of, open_all

ARRAY_RECORD = (".array_record", ".arrayrecord")
TF_RECORD = (".tfrecord", ".tfrecords")

_LENGTH = struct.Struct("<Q4x")  # the length of a TFRecord's data and its checksum; four more bytes follow the data
_CHECKSUM = 4


def records(path: str | Path, parse: Callable[[bytes], Any]) -> Examples:
    """Open the examples of a file of records, or of all record files of a folder.

    ArrayRecord files (`.array_record`) are read through grain. TFRecord files (`.tfrecord`) have no index: one is built
    from the lengths of the records, without reading their data. Compressed files cannot be read by number.

    Args:
        path: the file or the folder.
        parse: converts the bytes of one record to one example, a tree of arrays and numbers; such as
            `lambda record: {"x": np.frombuffer(record, np.float32)}`.

    Raises:
        DataError: there are no such files, or some were cut short; every file is listed. Or examples differ in shape.

    Example:
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> path = getfixture("tmp_path") / "x.array_record"
        >>> writer = ArrayRecordWriter(str(path), "group_size:1")
        >>> for number in range(5):
        ...     _ = writer.write(np.full(2, number, np.float32).tobytes())
        >>> writer.close()
        >>> examples = outlay.datasets.records(path, lambda record: {"x": np.frombuffer(record, np.float32)})
        >>> len(examples), examples[[3, 1]]["x"].tolist()
        (5, [[3.0, 3.0], [1.0, 1.0]])
    """
    files = files_of(Path(path), (*ARRAY_RECORD, *TF_RECORD), "records")
    sources = open_all(files, _opened, (ValueError, OSError, RuntimeError))
    starts = [0, *itertools.accumulate(len(source) for source in sources)]

    def one(number: int) -> Any:
        which = bisect.bisect_right(starts, number) - 1
        return parse(sources[which][number - starts[which]])

    def read(numbers: np.ndarray) -> Any:
        examples = [one(number) for number in numbers.tolist()]
        try:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)
        except ValueError as error:
            raise DataError(
                f"the examples in {path} have different shapes: {error}\n  fix: let parse pad or cut them"
            ) from error

    return Examples(starts[-1], read, str(path))


def _opened(file: Path) -> Sequence[bytes]:
    if file.suffix.lower() not in ARRAY_RECORD:
        return TFRecords(file)
    import grain

    return cast(Sequence[bytes], grain.sources.ArrayRecordDataSource([str(file)]))


class TFRecords(Sequence):
    """The records of a TFRecord file by number.

    Raises:
        ValueError: it was cut short, is compressed, or is not a TFRecord file.
    """

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._map = b""
        if not size:  # which cannot be mapped
            return
        with open_input(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offset = 0
        while offset < size:
            has_header = offset + _LENGTH.size <= size
            length = _LENGTH.unpack_from(self._map, offset)[0] if has_header else 0
            start = offset + _LENGTH.size
            offset = start + length + _CHECKSUM
            if offset > size:
                raise ValueError(
                    f"after {counted(len(self._lengths), 'record')} one goes beyond its {size:,} bytes: it was cut "
                    "short, or is compressed or not a TFRecord; write it again, uncompressed"
                )
            self._starts.append(start)
            self._lengths.append(length)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> Any:
        """Return the bytes of one record."""
        start = self._starts[number]
        return bytes(self._map[start : start + self._lengths[number]])
