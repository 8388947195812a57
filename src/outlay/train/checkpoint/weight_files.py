"""Open weight files (safetensors, `.npz`, Orbax) as arrays by name, read by slices and never whole."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlay.arrays.from_slices import StoredArray, Unreadable, in_tensorstore
from outlay.core.error_types import CheckpointError, Problem
from outlay.core.input_file import check_folder, open_input, read_text
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.train.checkpoint.array_files import summary_of

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

_INDEX = ".safetensors.index.json"
_TREE = "_METADATA"  # in the folder of a tree that Orbax saved
_NO_ARRAYS = ("None", "Dict", "List", "Tuple", "NamedTuple", "string")  # what its trees hold beside arrays
_HEADER_LENGTH = struct.Struct("<Q")  # of a safetensors file
_OF_NUMPY = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64", "C64")
_NARROW = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""The dtypes of safetensors that are none of NumPy's own, as `ml_dtypes` names them."""
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a zip file; it ends with the lengths of name and extra field


def open_weights(files: Paths) -> dict[str, StoredArray]:
    """Open the arrays of weight files by name.

    Args:
        files: one or several `.safetensors` or `.npz` files, the `.safetensors.index.json` of a model in several
            files, the folder of a model, or the folder of a tree that Orbax saved.

    Raises:
        CheckpointError: a file cannot be read, or two files have the same name; each is a problem of its own.
    """
    given = [files] if isinstance(files, str | PathLike) else files
    arrays: dict[str, StoredArray] = {}
    problems: list[Problem] = []
    seen: dict[str, Path] = {}
    for path in (each for one in given for each in _files(Path(one), problems)):
        try:
            read = _orbax if path.is_dir() else _npz if path.suffix == ".npz" else _safetensors
            opened = dict(read(path))
        except Unreadable as error:
            problems.append(Problem("cannot read", str(path), *error.args))
            continue
        problems += [
            Problem("name twice", name, f"{seen[name]} and {path} both have it", "give one of the two files")
            for name in opened.keys() & arrays.keys()
        ]
        arrays |= opened
        seen |= dict.fromkeys(opened, path)
    if problems:
        raise CheckpointError(
            f"weights cannot be read: {counted(len(problems), 'problem')}; nothing was loaded", problems
        )
    if not arrays:
        raise CheckpointError("there is no array in these files, or no file was given\n  fix: a .safetensors file")
    return arrays


def _files(path: Path, problems: list[Problem]) -> list[Path]:
    if path.is_dir():
        if checkpoint := next((folder for folder in (path, path / "default") if (folder / _TREE).is_file()), None):
            return [checkpoint]
        indices = sorted(path.glob(f"*{_INDEX}"))
        files = indices[:1] or sorted([*path.glob("*.safetensors"), *path.glob("*.npz")])
        if not files:
            problems.append(
                Problem(
                    "no weights", str(path), "no .safetensors, .npz or Orbax checkpoint is in it", "the model's folder"
                )
            )
        return [file for each in files for file in _files(each, problems)]
    if not path.name.endswith(_INDEX):
        return [path]
    try:
        names = json.loads(read_text(path))["weight_map"]
        parts = sorted(set(names.values()))
        if not all(isinstance(part, str) and Path(part).name == part for part in parts):
            raise ValueError("its weight_map names a file that is not beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problems.append(Problem("cannot read", str(path), summary_of(error), "download the index again"))
        return []
    missing = [part for part in parts if not (path.parent / part).is_file()]
    problems += [
        Problem("missing file", str(path.parent / part), f"{path.name} names it", "download the model again")
        for part in missing
    ]
    return [path.parent / part for part in parts if part not in missing]


def _check_present(path: Path) -> None:
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
        raise Unreadable("there is no such file", did_you_mean(path.name, beside))


def _safetensors(path: Path) -> Iterator[tuple[str, StoredArray]]:
    _check_present(path)
    try:
        import ml_dtypes
        import safetensors
    except ImportError as error:
        raise Unreadable("the library safetensors is not installed", "pip install 'outlay[safetensors]'") from error
    try:
        file = safetensors.safe_open(path, framework="numpy")  # which maps the file, and checks lengths and offsets
        header, start = _header(path)
        for name in file.keys():  # noqa: SIM118  # it is no dictionary
            facts = header[name]
            dtype = facts["dtype"]
            if dtype in _OF_NUMPY:
                yield name, _tensor(file, name)
            elif dtype in _NARROW:
                offset = start + facts["data_offsets"][0]
                yield name, _mapped(path, tuple(facts["shape"]), np.dtype(getattr(ml_dtypes, _NARROW[dtype])), offset)
            else:
                known = ", ".join((*_OF_NUMPY, *_NARROW))
                raise Unreadable(f"{name} is of dtype {dtype}, which no array has", f"convert it to one of {known}")
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        size = f"{path.stat().st_size:,} bytes"
        what = f"not a complete safetensors file, {size}: {summary_of(error)}"
        raise Unreadable(what, "download it again; it may have been cut short") from error


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file that the library has opened, and where its data begin."""
    with open_input(path) as file:
        (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
        return json.loads(file.read(length)), _HEADER_LENGTH.size + length


def _tensor(file: Any, name: str) -> StoredArray:
    piece = file.get_slice(name)
    shape = tuple(piece.get_shape())
    if not shape:  # slices have a dim
        value = file.get_tensor(name)
        return StoredArray((), value.dtype, lambda index: value[index])
    return StoredArray(shape, piece[0:0].dtype, lambda index: piece[tuple(index)])


def _npz(path: Path) -> Iterator[tuple[str, StoredArray]]:
    _check_present(path)
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    what = f"{member.filename} is compressed, and would have to be read whole"
                    raise Unreadable(what, "write it with np.savez, which does not compress")
                file.seek(member.header_offset)
                lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                end = file.seek(sum(lengths), 1) + member.file_size
                yield member.filename.removesuffix(".npy"), _mapped(path, *_array_header(file), end=end)
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, EOFError) as error:
        raise Unreadable(f"not a complete .npz file: {summary_of(error)}", "write it again with np.savez") from error


def _orbax(path: Path) -> Iterator[tuple[str, StoredArray]]:
    """Open the arrays of a tree that Orbax saved, named by their keys, joined by dots."""
    try:
        check_folder(path)
        tree = json.loads(read_text(path / _TREE))
        leaves = [
            (".".join(str(key["key"]) for key in leaf["key_metadata"]), leaf["value_metadata"]["value_type"])
            for leaf in tree["tree_metadata"].values()
        ]
        driver = "zarr3" if tree.get("use_zarr3") else "zarr"
        for name, kind in leaves:
            if kind in _NO_ARRAYS:
                continue
            if "/" in name:
                raise ValueError(f"its tree has the key {name!r}, which is not a name")
            folder = {"driver": "file", "path": f"{path.resolve()}/"}
            if tree.get("use_ocdbt"):
                kvstore = {"driver": "ocdbt", "base": folder, "path": f"{name}/"}
            else:
                kvstore = {**folder, "path": f"{folder['path']}{name}/"}
            yield name, in_tensorstore({"driver": driver, "kvstore": kvstore})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"not a complete checkpoint of Orbax: {summary_of(error)}"
        raise Unreadable(what, "the folder of one step as it was saved, with all its files") from error


def _array_header(file: Any) -> tuple[tuple[int, ...], np.dtype, int, Literal["C", "F"]]:
    """Read the header of an array that comes next in a file: its shape and dtype, and where its data begin."""
    major, _ = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, dtype, file.tell(), "F" if by_columns else "C"


def _mapped(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    offset: int,
    order: Literal["C", "F"] = "C",
    *,
    end: int | None = None,
) -> StoredArray:
    """Memory-map an array whose data begin at an offset of a file, and end where its part of the file ends.

    Raises:
        ValueError: that part, or the file, ends before the array does.
    """
    last, there = offset + math.prod(shape) * dtype.itemsize, path.stat().st_size
    there = there if end is None else min(end, there)
    if min(shape, default=0) < 0 or last > there:
        raise ValueError(f"an array of {dtype} {shape} would end at byte {last:,} of {there:,}")

    def read(index: tuple[slice, ...]) -> np.ndarray:
        if 0 in shape:  # an empty array cannot be mapped
            return np.zeros(shape, dtype)[index]
        # Map again for every slice, so that the pages of one slice are released before the next is read.
        return np.array(np.memmap(path, dtype, "r", offset, shape, order)[index])

    return StoredArray(shape, dtype, read)
