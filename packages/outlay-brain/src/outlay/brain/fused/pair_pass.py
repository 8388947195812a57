"""One pass over the pairs of a population: the change that the last step left, and the current of this one.

Says what a pass computes, whichever compiler makes it, and tests that it does.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from outlay.brain.delays import BITS
from outlay.brain.fused.row_equations import NotCompiled, TracedRow
from outlay.brain.fused.sparse_steps import CATCH_UP, DENSE, SPARSE, SparseSteps
from outlay.brain.rounding import is_narrow, rounds_each
from outlay.kit import compiled_for, is_compile_only

BOOL, UINT8, UINT32, FLOAT = (jnp.dtype(name) for name in ("bool", "uint8", "uint32", "float32"))
MOST_STEPS = BITS - 2
"""The longest delay: a pair looks at two bits of a word of past spikes, beginning with that of its delay."""


@dataclass(frozen=True)
class PairPass(abc.ABC):
    """A pass over the pairs, made of the rule's equations, so that a rule says them once.

    Attributes:
        rows: dtypes of the arrays with an entry for each pair: the kernel, then what the rule keeps.
        num_inputs: pre neurons.
        delays: dtype of the delays, if each pair has its own; else None.
        quiet: the equations of a row whose neuron did not spike; None without a rule.
        spiking: the equations of a row whose neuron spiked; None without a rule.
    """

    rows: tuple[np.dtype, ...]
    num_inputs: int
    delays: np.dtype | None
    quiet: TracedRow | None
    spiking: TracedRow | None

    @property
    def sparse(self) -> SparseSteps | None:
        """Return how the pass leaves out pairs in steps in which spikes reach few; None if it never does."""
        return None

    @abc.abstractmethod
    def check_device(self, device: jax.Device) -> None:
        """Raise unless there is such a pass for a device.

        Raises:
            NoPasses: there is none.
        """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Compile the pass, and return a name that no other pass has.

        Raises:
            NotCompiled: an equation is of a kind that is not known.
            NoPasses: nothing can be compiled here.
        """

    @classmethod
    @abc.abstractmethod
    def compute_all(
        cls, passes: Sequence[Self], calls: Sequence[PassCall]
    ) -> list[tuple[list[jax.Array], jax.Array, list[jax.Array]]]:
        """Compute passes of this kind, in one call if the kind allows; return for each what `__call__` does."""

    @property
    def num_tried(self) -> int:
        """Return the number of neurons in the self-test, at least two."""
        return 2

    def computed(self, *inputs: Any) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
        """Run the pass in its self-test.

        Raises:
            NotCompiled: two runs differ.
        """
        return jax.device_get(self._jitted(*inputs))

    @functools.cached_property
    def _jitted(self) -> Any:
        # Not the pass itself: of an object that is called JAX prints all its fields for a name, equations included.
        return jax.jit(lambda *inputs: self(*inputs))

    @property
    def traced(self) -> list[TracedRow]:
        """Return the equations of a quiet row and of a spiking one; none without a rule."""
        return [] if self.quiet is None or self.spiking is None else [self.quiet, self.spiking]

    @property
    def words_at(self) -> int:
        """Return the position of the words of past spikes among the arguments.

        After them come sign, spiked, pending, and the arrays that the equations close over.
        """
        return len(self.rows) + (self.delays is not None)

    def __call__(self, *arrays: Any) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        """Return the rows after the last step's change, the currents of post neurons in float32, and `sparse` after it.

        Args:
            arrays: as for `call`.
        """
        return self.compute_all([self], [self.call(*arrays)])[0]

    def call(
        self,
        rows: list[jax.Array],
        delays: jax.Array | None,
        words: jax.Array,
        sign: jax.Array,
        spiked: jax.Array,
        pending: jax.Array,
        consts: list[jax.Array],
        sparse: list[jax.Array],
    ) -> PassCall:
        """Return the operands of the compiled function, and the shapes of its results.

        Args:
            rows: the kernel, and what the rule keeps, (post, pre).
            delays: the delay of each pair in steps, (post, pre); None if the words are shifted already.
            words: the past spikes of each pre neuron, (pre,). Shifted right by the delay of a pair, bit 0 says whether
                a spike arrives in this step, and bit 1 whether one arrived in the last.
            sign: the sign of each pre neuron's spikes, (pre,), 1 or -1.
            spiked: which post neurons spiked in the last step.
            pending: whether there was a last step, whose change has yet to be made.
            consts: the arrays that the equations close over, those of quiet rows first.
            sparse: the numbers and the vectors of `SparseSteps`; nothing where there are none.
        """
        num_rows = len(rows) if self.traced else 0
        inputs = [*rows, *([] if delays is None else [delays]), words, sign, spiked, pending, *consts, *sparse]
        changed = [*rows[:num_rows], *sparse[1:]]
        results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in changed]
        results.append(jax.ShapeDtypeStruct(rows[0].shape[:1], FLOAT))
        # Rows are changed in place, without a copy of all pairs.
        aliases = {k: k for k in range(num_rows)} | {len(inputs) - 1: num_rows for _ in sparse[1:]}
        return PassCall(inputs, results, aliases, num_rows, rows, sparse)


@dataclass(frozen=True)
class PassCall:
    """One call of a pass.

    Attributes:
        inputs: the arrays that go in.
        results: shapes and dtypes of those that come out.
        aliases: which input each of the results may take the memory of.
        num_rows: how many of `rows` are changed: all, or none without a rule.
        rows: the arrays with an entry for each pair, before the call.
        sparse: the numbers and the vectors of `SparseSteps`, before the call.
    """

    inputs: list[jax.Array]
    results: list[jax.ShapeDtypeStruct]
    aliases: dict[int, int]
    num_rows: int
    rows: list[jax.Array]
    sparse: list[jax.Array]

    def named(self, results: Sequence[jax.Array]) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        """Return the arrays that came out as `PairPass.__call__` does."""
        *after, current = results
        return list(after[: self.num_rows]) or self.rows, current, [*self.sparse[:1], *after[self.num_rows :]]


TOLERANCE = 1e-5
"""The share of the largest entry by which float32 may differ: a product and a sum may be rounded as one operation."""
_passed: set[str] = set()
"""The names of the passes that passed their self-test."""


def check_pass(pairs: PairPass) -> None:
    """Check that a pass can be compiled and computes what JAX computes of its equations; once in a process.

    This guards against compilers, processors and versions of XLA's interface that differ from what was assumed. For a
    device that is not attached nothing is computed.

    Raises:
        NotCompiled: the pass cannot be compiled, or computes something else.
    """
    device = compiled_for()
    pairs.check_device(device)
    # Of the same equations and sizes there is one pass, whatever populations take it.
    if pairs.name in _passed:
        return

    def compare() -> None:
        tried = _Tried(pairs)
        if is_compile_only(device):
            jax.eval_shape(pairs.__call__, *tried.inputs(pending=True))
            return
        # The inputs are of NumPy, and would go to the default device, of whatever platform.
        with jax.default_device(jax.local_devices(backend=device.platform)[0]):
            tried.compare()
            if pairs.sparse:
                tried.compare_sparse()

    # What is being traced meanwhile, and the mesh that it is traced for, are this thread's alone.
    with ThreadPoolExecutor(1) as other:
        other.submit(compare).result()
    _passed.add(pairs.name)


class _Tried:
    """The self-test of a pass: random numbers for the pairs of some neurons, every second of which spiked."""

    def __init__(self, pairs: PairPass) -> None:
        random, shape = np.random.default_rng(0), (pairs.num_tried, pairs.num_inputs)
        self.pairs = pairs
        self.rows = [random.random(shape).astype(dtype) for dtype in pairs.rows]
        self.words = random.integers(0, 2**32, shape[1], np.uint32)
        self.sign = random.choice(np.array([-1, 1], np.float32), shape[1])
        self.delays = random.integers(1, MOST_STEPS + 1, shape).astype(pairs.delays or np.uint8)
        numbered = [both for row in pairs.traced for both in zip(row.numbers, row.consts, strict=True)]
        arrays = {number: _some(random, like) for number, like in dict(numbered).items()}
        self.consts = [[arrays[number] for number in row.numbers] for row in pairs.traced]
        # Four steps in which few neurons spike, and a pre neuron of every second 16 or so, which arrives somewhere.
        lane = np.repeat(random.integers(0, 32, (4, shape[1] // 16 + 1)), 16, axis=1)[:, : shape[1]]
        arriving = 2 ** random.integers(1, MOST_STEPS, (4, shape[1])) * 5 if pairs.delays else random.integers(1, 4)
        self.few_words = np.where(np.arange(shape[1]) % 16 == lane, arriving, 0).astype(np.uint32)
        self.few_spiked = random.random((4, shape[0])) < 0.05

    def inputs(self, *, pending: bool) -> tuple[Any, ...]:
        """Return the arguments of the pass."""
        spiked = np.arange(self.pairs.num_tried) % 2 == 1
        return self._inputs(self.rows, self.words, spiked, self._begun(), pending=pending)

    def _begun(self) -> list[Any]:
        sparse = self.pairs.sparse
        if sparse is None:
            return []
        return [sparse.begin([])["numbers"], *sparse.vectors(self.pairs.num_tried)]

    def _inputs(self, rows: Any, words: Any, spiked: Any, taken: list[Any], *, pending: bool) -> tuple[Any, ...]:
        # Of more neurons than there are, each finds what one of those has.
        repeated = [_repeated(const, self.pairs.num_tried) for of_row in self.consts for const in of_row]
        delays = None if self.pairs.delays is None else self.delays
        return [jnp.asarray(x) for x in rows], delays, words, self.sign, spiked, np.asarray(pending), repeated, taken

    def compare_sparse(self) -> None:
        """Compare some steps that leave out pairs with the same steps that do not.

        Raises:
            NotCompiled: they do not leave the same bits.
        """
        last = CATCH_UP if self.pairs.sparse and self.pairs.sparse.unreached.goes_on else DENSE
        if self._after([DENSE, SPARSE, SPARSE, last]) != self._after([DENSE] * 4):
            raise NotCompiled("in its self-test a step that leaves out pairs computes something else")

    def _after(self, modes: list[int]) -> list[bytes]:
        """Return the bits of all currents, and of the rows after the last step."""
        rows, taken, seen = self.rows, self._begun(), []
        for k, mode in enumerate(modes):
            taken = [np.array([mode, sum(mode != DENSE for mode in modes[: k + 1]), 0, 0], np.uint8), *taken[1:]]
            inputs = self._inputs(rows, self.few_words[k], self.few_spiked[k], taken, pending=True)
            rows, current, taken = self.pairs.computed(*inputs)
            seen.append(current.tobytes())
        return [*seen, *(row.tobytes() for row in rows)]

    def compare(self) -> None:
        """Compare the rows and currents of the first two neurons with JAX's.

        Raises:
            NotCompiled: they differ.
        """
        pairs, rows, delays = self.pairs, self.rows, self.delays
        own_delays = pairs.delays is not None
        seen = self.words >> (delays if own_delays else np.zeros(delays.shape, np.uint32))
        for pending in (False, True):
            expected = [row[:2] for row in rows]
            if pending and pairs.traced:
                each = [
                    _evaluated(row, consts, i, [x[i] for x in rows], (seen[i] & 2) != 0, delays[i], own_delays)
                    for i, (row, consts) in enumerate(zip(pairs.traced, self.consts, strict=True))
                ]
                expected = [np.stack(both) for both in zip(*each, strict=True)]
            brought = (expected[0].astype(np.float64) * self.sign * ((seen[:2] & 1) != 0)).sum(1)
            after, current, _ = pairs.computed(*self.inputs(pending=pending))
            for name, got, right in zip(["kernel"] * len(rows), after, expected, strict=True):
                _check_close(name, got[:2], right, 0.0 if is_narrow(right.dtype) else TOLERANCE)
            _check_close("current", current[:2], brought, TOLERANCE)


def _evaluated(
    row: TracedRow, consts: list[Any], neuron: int, rows: list[Any], arrived: Any, delays: Any, own_delays: bool
) -> list[np.ndarray]:
    """Return the rows after a step as JAX computes them."""
    function = rounds_each(jaxpr_as_fun(ClosedJaxpr(row.jaxpr, consts)), rows[0].dtype)
    return [
        np.asarray(x) for x in jax.jit(function)(np.uint32(neuron), *rows, arrived, *([delays] if own_delays else []))
    ]


def _repeated(const: np.ndarray, num: int) -> np.ndarray:
    """Repeat an array along its first dim, until it has at least so many entries."""
    return np.concatenate([const] * -(-num // len(const))) if const.ndim else const


def _some(random: np.random.Generator, like: jax.ShapeDtypeStruct) -> np.ndarray:
    """Draw numbers from 0 to 1; whole numbers, which are places in an array, are 0 or 1."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        return random.random(like.shape).astype(like.dtype)
    return random.integers(0, 2, like.shape).astype(like.dtype)


def _check_close(what: str, got: Any, right: np.ndarray, tolerance: float) -> None:
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    off = np.abs(got - right).max() / max(1e-30, np.abs(right).max())
    if not off <= tolerance:
        raise NotCompiled(
            f"in its self-test the {what} is off by {off:.2g} of its largest entry, more than {tolerance:g}"
        )
