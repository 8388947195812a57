"""Initialize kernels: at random, from an array, or from a file.

Every neuron draws its own row from the key and its number alone, so the row does not depend on the device that makes
it.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.module import BrainError
from outlay.brain.registry import register
from outlay.errors import Problem
from outlay.kit import OneLine, check_input, counted, is_real


class Initializer(OneLine, abc.ABC):
    """The initial values of a kernel."""

    @abc.abstractmethod
    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """Return the initial values.

        Args:
            key: the PRNG key.
            shape: (post-synaptic neurons, pre-synaptic neurons).
            dtype: the dtype of the values.
        """

    def problems(self) -> list[str]:
        """Yield the problems of the settings: each is a sentence, a newline, and the fix."""
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
        """Return the value everywhere."""
        return jnp.full(shape, self.value, dtype)


@dataclass(frozen=True)
class Bounded(Initializer):
    """Values that are clipped to bounds, including the zeros of unconnected pairs.

    Attributes:
        min_value: the lower bound; None for none.
        max_value: the upper bound; None for none.
    """

    min_value: float | None = field(default=None, kw_only=True)
    max_value: float | None = field(default=None, kw_only=True)

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """Return the initial values."""
        low, high = self.min_value, self.max_value
        values = self.drawn(key, shape)
        return (values if low is None and high is None else jnp.clip(values, low, high)).astype(dtype)

    def problems(self) -> list[str]:
        """Report a density outside 0 to 1, dims that a kernel lacks, and a lower bound above the upper one."""
        # Subclasses without these settings draw all pairs, and normalise nothing.
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
        """Return the values before clipping, in float32."""


@register("uniform", kind="initializer")
@dataclass(frozen=True)
class Uniform(Bounded):
    """Uniform draws: scale × [0, 1).

    Attributes:
        scale: the factor of the draws.
        min_value: the lower bound; None for none.
        max_value: the upper bound; None for none.
    """

    scale: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the values."""
        return self.scale * by_neuron(jax.random.uniform, key, shape)


@register("sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class SparseUniform(Bounded):
    """Sparse uniform values: scale × [0, 1) with probability `density`, otherwise 0.

    Attributes:
        scale: the factor of the draws.
        density: the fraction of nonzero values, from 0 to 1.
        min_value: the lower bound, also for zeros; None for none.
        max_value: the upper bound; None for none.
    """

    scale: float = 1.0
    density: float = 0.2

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the values."""
        return self.scale * _some(key, shape, self.density)


@register("normalized_sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class NormalizedSparseUniform(Bounded):
    """Sparse uniform values, normalised by their sums: [0, 1) with probability `density`, otherwise 0.

    Attributes:
        scale: the sum of the values along `norm_axes`, unless all of them are 0.
        density: the fraction of nonzero values, from 0 to 1.
        norm_axes: the dims along which they sum to `scale`: 0 post-synaptic, 1 pre-synaptic neurons.
        min_value: the lower bound, also for zeros; None for none.
        max_value: the upper bound; None for none.
    """

    scale: float = 1.0
    density: float = 0.2
    norm_axes: tuple[int, ...] = (0,)

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the values."""
        draws = _some(key, shape, self.density)
        total = draws.sum(tuple(self.norm_axes), keepdims=True)
        # A neuron without any pair stays without: dividing by its sum would make NaNs.
        return self.scale * draws / jnp.where(total > 0, total, 1)


@register("normal", kind="initializer")
@dataclass(frozen=True)
class Normal(Bounded):
    """Sparse normal values: mu + sigma × N(0, 1) with probability `density`, otherwise 0.

    Sources: `NormalInitializer` and `SparseNormalInitializer` of Spark (Nogarx/Spark).

    Attributes:
        mu: the mean.
        sigma: the standard deviation.
        density: the fraction of nonzero values, from 0 to 1.
        min_value: the lower bound, also for zeros; None for none.
        max_value: the upper bound; None for none.
    """

    mu: float = 0.0
    sigma: float = 1.0
    density: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the values."""
        return _some(key, shape, self.density, lambda *of: self.mu + self.sigma * jax.random.normal(*of))


@register("log_normal", kind="initializer")
@dataclass(frozen=True)
class LogNormal(Bounded):
    """Sparse log-normal values: mu + exp(sigma × N(0, 1)) with probability `density`, otherwise 0.

    mu shifts the values; it is not the mean of their logarithm, which is 0.

    Sources: `LogNormalInitializer` and `SparseLogNormalInitializer` of Spark (Nogarx/Spark).

    Attributes:
        mu: the shift.
        sigma: the standard deviation of their logarithm.
        density: the fraction of nonzero values, from 0 to 1.
        min_value: the lower bound, also for zeros; None for none.
        max_value: the upper bound; None for none.
    """

    mu: float = 0.0
    sigma: float = 1.0
    density: float = 1.0

    def drawn(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draw the values."""
        return _some(key, shape, self.density, lambda *of: self.mu + jnp.exp(self.sigma * jax.random.normal(*of)))


def by_neuron(draw: Any, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw a row, or a number, for each neuron by `draw(key, shape)`, from the key and the neuron's number."""
    units, *row = shape
    some = _SOME_NEURONS.get()
    numbers = jnp.arange(units) if some is None else some.numbers
    return jax.vmap(lambda unit: draw(jax.random.fold_in(key, unit), tuple(row)))(numbers)


@dataclass(frozen=True)
class SomeNeurons:
    """The neurons whose rows are initialized, where a device makes only its own.

    Attributes:
        numbers: their numbers.
        units: how many neurons the population has.
    """

    numbers: jax.Array
    units: int


_SOME_NEURONS: contextvars.ContextVar[SomeNeurons | None] = contextvars.ContextVar("some neurons", default=None)


@contextlib.contextmanager
def initializing(some: SomeNeurons) -> Iterator[None]:
    """Let initializers make the rows of some neurons, for shapes that begin with the number of these."""
    token = _SOME_NEURONS.set(some)
    try:
        yield
    finally:
        _SOME_NEURONS.reset(token)


def own_rows(values: jax.Array) -> jax.Array:
    """Return the rows to initialize of an array with a row for each neuron: all, or some neurons'."""
    some = _SOME_NEURONS.get()
    return values if some is None else values[some.numbers]


def makes_rows(initializer: Initializer) -> bool:
    """Return whether an initializer of Outlay's makes each row from the key and the neuron's number alone."""
    # A column is divided by its sum over all rows; summed device by device, it would round otherwise on each number of
    # devices.
    return not (isinstance(initializer, NormalizedSparseUniform) and 0 in initializer.norm_axes)


def _some(key: jax.Array, shape: tuple[int, int], density: float, draw: Any = jax.random.uniform) -> jax.Array:
    """Draw values, and replace some of them by 0."""
    # With one key for both, only values below the density would be drawn.
    of_values, of_choice = jax.random.split(key)
    draws = by_neuron(draw, of_values, shape)
    return jnp.where(by_neuron(jax.random.uniform, of_choice, shape) < density, draws, 0)


@dataclass(frozen=True, eq=False)
class GivenKernel(Initializer):
    """A given array, such as one from a NIR file.

    A Brain's TOML has no arrays; name a `.npy` file there instead.

    Attributes:
        values: (post, pre).
    """

    values: np.ndarray = field(repr=False)

    # Of dataclasses, == would compare arrays, which gives an array.
    def __eq__(self, other: object) -> bool:
        """Return whether the other kernel has the same values."""
        return isinstance(other, GivenKernel) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        """Hash the shape and the bytes."""
        return hash((self.values.shape, self.values.tobytes()))

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """Return the initial values.

        Raises:
            BrainError: the kernel has another shape, or numbers that are complex or not finite.
        """
        return _fitting(self.values, shape, "the kernel given", dtype)


@register("npy", kind="initializer")
@dataclass(frozen=True)
class KernelFile(Initializer):
    """The array of a `.npy` file.

    Attributes:
        path: the file; in a Brain's file, relative to the folder of that file.
    """

    path: str

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """Return the initial values.

        Raises:
            BrainError: there is no such file, or its array has another shape, or is complex or not finite.
        """
        try:
            check_input(self.path)
            values = np.load(self.path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _refusal(self.path, str(error), "a file that numpy.save has written") from error
        if not isinstance(values, np.ndarray):
            raise _refusal(self.path, "it holds several arrays (.npz)", "one array, numpy.save(path, kernel)")
        return _fitting(values, shape, self.path, dtype)


def _fitting(values: np.ndarray, shape: tuple[int, int], where: str, dtype: Any) -> jax.Array:
    some = _SOME_NEURONS.get()
    shape = shape if some is None else (some.units, shape[1])
    if values.shape != shape:
        what = f"it has shape {values.shape}, but the kernel is {shape}: post-synaptic, pre-synaptic neurons"
        raise _refusal(where, what, f"an array of shape {shape}")
    if np.issubdtype(values.dtype, np.complexfloating):
        raise _refusal(where, f"it holds {values.dtype}, and a kernel is real", "its real part, kernel.real")
    if not is_real(values.dtype):
        raise _refusal(where, f"it holds {values.dtype}, not numbers", "an array of numbers")
    with np.errstate(over="ignore"):
        numbers = values.astype(dtype)
    bad = np.argwhere(~np.isfinite(numbers.astype(np.float32)))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        num = counted(len(bad), "number")
        what = f"it has {values[at]} at {list(at)}, and {num} that {jnp.dtype(dtype)} does not hold"
        raise _refusal(where, what, "finite numbers, such as numpy.nan_to_num(kernel)")
    return own_rows(jnp.asarray(numbers))


def _refusal(path: str, what: str, fix: str) -> BrainError:
    return BrainError("a kernel cannot be read:", [Problem("kernel", path, what, fix)])
