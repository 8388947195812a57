"""Tables in Parquet and Arrow files, such as Hugging Face's datasets on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.error_types import DataError
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.datasets.examples import CUT_SHORT, Examples, files_of, open_all

ENDINGS = (".parquet", ".arrow", ".feather")


def table(path: str | Path, columns: Sequence[str] | None = None) -> Examples:
    """Open the rows of a table: a Parquet or Arrow file, or the folder of a Hugging Face dataset.

    Arrow files, which `datasets` writes in `save_to_disk` and in its cache, are memory-mapped. Of Parquet files, the
    columns that are asked for are read completely when they are opened. It needs pyarrow (extra `outlay[parquet]`).

    Args:
        path: the file or the folder.
        columns: the columns, each an entry of the batch; all if None. They must hold numbers, or lists with the same
            number of numbers in every row.

    Raises:
        DataError: there are no such files, a file was cut short, a column is missing, or it does not hold arrays.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> path = getfixture("tmp_path") / "train.parquet"
        >>> rows = {"input_ids": [[1, 2], [3, 4], [5, 6]], "label": [0, 1, 0], "text": ["a", "b", "c"]}
        >>> pyarrow.parquet.write_table(pyarrow.table(rows), path)
        >>> batch = outlay.datasets.table(path, ["input_ids", "label"])[[2, 0]]
        >>> batch["input_ids"].tolist(), batch["label"].tolist()
        ([[5, 6], [1, 2]], [0, 0])
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            "tables are read with pyarrow, which is not installed\n  fix: pip install 'outlay[parquet]'"
        ) from error
    files = files_of(Path(path), ENDINGS, "tables")
    opened = open_all(files, lambda file: _opened(file, columns), (pyarrow.ArrowException, OSError), CUT_SHORT)
    try:
        rows = pyarrow.concat_tables(opened)
    except pyarrow.ArrowInvalid as error:
        raise DataError(
            f"the files of {path} have different columns: {error}\n  fix: give the folder of one table"
        ) from error
    _check_types(path, rows.schema)

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        taken = rows.take(pyarrow.array(numbers))
        return {name: _array(path, name, taken.column(name)) for name in taken.column_names}

    return Examples(rows.num_rows, read, str(path))


def _opened(file: Path, columns: Sequence[str] | None) -> Any:
    """Open the columns of one file as an Arrow table.

    Raises:
        DataError: it lacks some of them.
    """
    import pyarrow
    import pyarrow.parquet

    if file.suffix.lower() == ".parquet":
        schema = pyarrow.parquet.read_schema(file)
        _check_columns(file, columns, schema.names)
        return pyarrow.parquet.read_table(file, columns=columns and list(columns))
    mapped = pyarrow.memory_map(str(file))
    try:
        rows = pyarrow.ipc.open_stream(mapped).read_all()  # the format in which `datasets` writes
    except pyarrow.ArrowInvalid:
        rows = pyarrow.ipc.open_file(mapped).read_all()  # that of Feather
    _check_columns(file, columns, rows.column_names)
    return rows if columns is None else rows.select(list(columns))


def _check_columns(file: Path, columns: Sequence[str] | None, there: Sequence[str]) -> None:
    if missing := [name for name in columns or () if name not in there]:
        lines = [f"  {name!r}: {did_you_mean(name, there)}" for name in missing]
        raise DataError("\n".join([f"{file} lacks {counted(len(missing), 'column')}:", *lines]))


def _check_types(path: str | Path, schema: Any) -> None:
    """Raise for columns whose values are neither numbers nor lists of them."""
    import pyarrow.types as types

    def is_number(kind: Any) -> bool:
        return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)

    def is_array(kind: Any) -> bool:
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        return is_number(kind) or (any(test(kind) for test in lists) and is_array(kind.value_type))

    if odd := [field for field in schema if not is_array(field.type)]:
        good = [field.name for field in schema if is_array(field.type)]
        lines = [f"  {field.name!r}: {field.type}" for field in odd]
        fix = f"columns={good}" if good else "convert them to numbers first, such as tokens"
        raise DataError(
            "\n".join([f"{counted(len(odd), 'column')} of {path} cannot be arrays:", *lines, f"  fix: {fix}"])
        )


def _array(path: str | Path, name: str, column: Any) -> np.ndarray:
    """Convert one column of some rows to an array.

    Raises:
        DataError: a value is missing, or lists differ in length.
    """
    if column.null_count:
        raise DataError(
            f"column {name!r} of {path} lacks {counted(column.null_count, 'value')} of a batch\n  fix: fill them"
        )
    values, shape = column.combine_chunks(), [len(column)]
    while hasattr(values.type, "value_type"):
        num, flat = len(values), values.flatten()
        if flat.null_count or len(flat) % max(num, 1) or len(set(map(len, values))) > 1:
            raise DataError(
                f"the lists in column {name!r} of {path} differ in length\n  fix: pad or cut them to one length, and "
                "write the table again"
            )
        shape.append(len(flat) // max(num, 1))
        values = flat
    return values.to_numpy(zero_copy_only=False).reshape(shape)
