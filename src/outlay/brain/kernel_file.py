"""Kernels that are given, not drawn: as an array, or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.brain_error import BrainError
from outlay.brain.initializers import Initializer
from outlay.brain.registry import register
from outlay.core.error_types import Problem


@dataclass(frozen=True, eq=False)
class GivenKernel(Initializer):
    """Values of an array, such as those that a file of NIR holds.

    A Brain's TOML holds no arrays: there, name a `.npy` file that holds the same.

    Attributes:
        values: (post, pre).
    """

    values: np.ndarray = field(repr=False)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same values."""
        return isinstance(other, GivenKernel) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        """Of the shape and the bytes."""
        return hash((self.values.shape, self.values.tobytes()))

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The values.

        Raises:
            BrainError: the kernel has another shape.
        """
        return _fitting(self.values, shape, "the kernel given", dtype)


@register("npy", kind="initializer")
@dataclass(frozen=True)
class KernelFile(Initializer):
    """The values of a `.npy` file.

    Attributes:
        path: the file; in a Brain's file from the folder of that file.
    """

    path: str

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The values.

        Raises:
            BrainError: there is no such file, or its values have another shape.
        """
        try:
            values = np.load(self.path)
        except (OSError, ValueError) as error:
            raise _refusal(self.path, str(error), "a file that numpy.save has written") from error
        return _fitting(values, shape, self.path, dtype)


def from_folder(table: Any, folder: Path) -> Any:
    """A table of a file whose kernel files are named from a folder, with paths that can be opened from here."""
    if not isinstance(table, Mapping):
        return table
    if table.get("type") == "npy" and isinstance(table.get("path"), str):
        return {**table, "path": str(folder / table["path"])}
    return {key: from_folder(value, folder) for key, value in table.items()}


def _fitting(values: np.ndarray, shape: tuple[int, int], where: str, dtype: Any) -> jax.Array:
    if values.shape != shape:
        what = f"it holds {values.shape}, and the kernel is {shape}: post-synaptic, pre-synaptic neurons"
        raise _refusal(where, what, f"an array of shape {shape}")
    return jnp.asarray(values, dtype)


def _refusal(path: str, what: str, fix: str) -> BrainError:
    return BrainError("a kernel cannot be read:", [Problem("kernel", path, what, fix)])
