"""Arrays on disk, as Zarr, through TensorStore."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.errors import BrainError

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
            "Zarr is read and written through TensorStore, which is not installed\n  cure: pip install 'outlay[zarr]'"
        ) from error
    return tensorstore
