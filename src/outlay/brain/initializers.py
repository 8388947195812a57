"""The kernel before the first step: drawn, given as an array, or read from a file.

Every neuron draws its own row from the key and from its number alone, so its row is the same wherever the row is made.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.module import BrainError
from outlay.brain.registry import register
from outlay.core.error_types import Problem


class Initializer(abc.ABC):
    """The values of a kernel at first."""

    @abc.abstractmethod
    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The values.

        Args:
            key: the PRNG key.
            shape: post-synaptic neurons, pre-synaptic neurons.
            dtype: of the values.
        """

    def problems(self) -> list[str]:
        """What is wrong with the settings: what, and after a newline the fix."""
        return []


@register("constant", kind="initializer")
@dataclass(frozen=True)
class Constant(Initializer):
    """The same value everywhere.

    Attributes:
        value: the value.
    """

    value: float = 1.0

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The value, everywhere."""
        return jnp.full(shape, self.value, dtype)


@dataclass(frozen=True)
class Bounded(Initializer):
    """Values that are cut off at bounds, zeros of pairs that are not connected among them.

    Attributes:
        min_value: smaller values become this one; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    min_value: float | None = field(default=None, kw_only=True)
    max_value: float | None = field(default=None, kw_only=True)

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The values."""
        low, high = self.min_value, self.max_value
        values = self.drawn(key, shape)
        return (values if low is None and high is None else jnp.clip(values, low, high)).astype(dtype)

    def problems(self) -> list[str]:
        """A share that is none, dims that a kernel has not, and a lower bound above the upper one."""
        wrong, density, axes = [], getattr(self, "density", 1.0), getattr(self, "norm_axes", (0,))
        if not 0 <= density <= 1:
            wrong.append(f"density is {density:g}\na share from 0 to 1, such as 0.2")
        if not axes or set(axes) - {0, 1} or len(set(axes)) < len(axes):
            wrong.append(f"norm_axes is {list(axes)}\n[0] for each pre-synaptic neuron, [1] post-synaptic, or [0, 1]")
        if self.min_value is not None and self.max_value is not None and self.min_value > self.max_value:
            wrong.append(
                f"min_value is {self.min_value:g} and max_value is {self.max_value:g}\nmin_value below max_value"
            )
        return wrong

    @abc.abstractmethod
    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The values before they are cut off, in float32."""


@register("uniform", kind="initializer")
@dataclass(frozen=True)
class Uniform(Bounded):
    """Uniform draws: scale × [0, 1).

    Attributes:
        scale: what the draws are multiplied with.
        min_value: smaller values become this one; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    scale: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The draws."""
        return self.scale * by_neuron(jax.random.uniform, key, shape)


@register("sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class SparseUniform(Bounded):
    """Uniform draws of which some are kept: scale × [0, 1) with probability `density`, else 0.

    Attributes:
        scale: what the draws are multiplied with.
        density: the share of values that are not 0, from 0 to 1.
        min_value: smaller values become this one, zeros too; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    scale: float = 1.0
    density: float = 0.2

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The draws."""
        return self.scale * _sparse(key, shape, self.density)


@register("normalized_sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class NormalizedSparseUniform(Bounded):
    """Uniform draws of which some are kept, divided by what they sum to: [0, 1) with probability `density`, else 0.

    Attributes:
        scale: what the values sum to along `norm_axes`; nothing but zeros stays zeros.
        density: the share of values that are not 0, from 0 to 1.
        norm_axes: the dims along which they sum to `scale`: 0 post-synaptic, 1 pre-synaptic neurons.
        min_value: smaller values become this one, zeros too; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    scale: float = 1.0
    density: float = 0.2
    norm_axes: tuple[int, ...] = (0,)

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The draws."""
        draws = _sparse(key, shape, self.density)
        total = draws.sum(tuple(self.norm_axes), keepdims=True)
        return self.scale * draws / jnp.where(total > 0, total, 1)


@register("normal", kind="initializer")
@dataclass(frozen=True)
class Normal(Bounded):
    """Normal draws of which some are kept: mu + sigma × N(0, 1) with probability `density`, else 0.

    Sources: `NormalInitializer` and `SparseNormalInitializer` of Spark (Nogarx/Spark).

    Attributes:
        mu: the mean.
        sigma: the standard deviation.
        density: the share of values that are not 0, from 0 to 1.
        min_value: smaller values become this one, zeros too; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    mu: float = 0.0
    sigma: float = 1.0
    density: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The draws."""
        return _some(key, shape, self.density, lambda *of: self.mu + self.sigma * jax.random.normal(*of))


@register("log_normal", kind="initializer")
@dataclass(frozen=True)
class LogNormal(Bounded):
    """Lognormal draws of which some are kept: mu + exp(sigma × N(0, 1)) with probability `density`, else 0.

    mu moves the draws along; it is not the mean of their logarithm, which is 0.

    Sources: `LogNormalInitializer` and `SparseLogNormalInitializer` of Spark (Nogarx/Spark).

    Attributes:
        mu: what is added to each draw.
        sigma: the standard deviation of their logarithm.
        density: the share of values that are not 0, from 0 to 1.
        min_value: smaller values become this one, zeros too; None for no bound.
        max_value: larger values become this one; None for no bound.
    """

    mu: float = 0.0
    sigma: float = 1.0
    density: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """The draws."""
        return _some(key, shape, self.density, lambda *of: self.mu + jnp.exp(self.sigma * jax.random.normal(*of)))


def by_neuron(draw: Any, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """One row of draws for each neuron, `draw(key, shape)`, from the key and the neuron's number."""
    units, num_inputs = shape
    return jax.vmap(lambda unit: draw(jax.random.fold_in(key, unit), (num_inputs,)))(jnp.arange(units))


def _sparse(key: jax.Array, shape: tuple[int, int], density: float) -> jax.Array:
    return _some(key, shape, density, jax.random.uniform)


def _some(key: jax.Array, shape: tuple[int, int], density: float, draw: Any) -> jax.Array:
    """Draws, with 0 in place of those that are not kept."""
    of_values, of_choice = jax.random.split(key)
    draws = by_neuron(draw, of_values, shape)
    return jnp.where(by_neuron(jax.random.uniform, of_choice, shape) < density, draws, 0)


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
