"""Find what the results of a traced step depend on: the batch, floats, the device's number; and what indexes what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from outlay.core.jax_tracing import scan_operands
from outlay.core.primitives import KEEPS

Marks = frozenset[Any]

BATCH = "batch"
"""Depends on the batch."""
FLOAT = "float"
"""Depends on something that rounds."""
DEVICE = "device"
"""Depends on the number of the computing device, other than by drawing random numbers."""
DRAWN = "drawn for the device"
"""Depends on random numbers that are drawn by the number of the device."""

_LIKE_ITS_OPERANDS = KEEPS | {
    *("add", "sub", "select_n", "clamp", "max", "min"),
    *("broadcast_in_dim", "slice", "pad", "concatenate"),
}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


@dataclass(frozen=True)
class _Index:
    """The leaf of integers at a position, unchanged except for its shape."""

    leaf: int


@dataclass(frozen=True)
class _Count:
    """0, 1, 2, ... up to a size."""

    size: int


@dataclass
class Dependence:
    """What a traced step's results depend on.

    Attributes:
        results: the marks of each result: what it depends on.
        dtypes: the dtypes with rounding in which the step computes.
        sizes: for each leaf of integers of the batch that indexes something, by position, the smallest size indexed.
    """

    results: list[Marks] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    dtypes: set[Any] = field(default_factory=set)

    @classmethod
    def of(cls, traced: ClosedJaxpr, num_state: int) -> Dependence:
        """Analyse a step.

        Args:
            traced: the step.
            num_state: how many of its operands are state; the others are the batch.
        """
        dependence = cls()
        operands = []
        for number, variable in enumerate(traced.jaxpr.invars):
            marks: set[Any] = set()
            if number >= num_state:
                marks.add(BATCH)
                if _is_integer(variable.aval):
                    marks.add(_Index(number - num_state))
            operands.append(frozenset(marks))
        dependence.results = dependence._through(traced.jaxpr, _of_consts(traced.consts), operands)
        return dependence

    def _through(self, jaxpr: Any, consts: Sequence[Marks], operands: Sequence[Marks]) -> list[Marks]:
        marks: dict[Any, Marks] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

        def read(atom: Any) -> Marks:
            return frozenset() if isinstance(atom, Literal) else marks[atom]

        for equation in jaxpr.eqns:
            results = self._operation(equation, [read(atom) for atom in equation.invars])
            marks.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _operation(self, equation: Any, operands: list[Marks]) -> Sequence[Marks]:
        name, params = equation.primitive.name, equation.params
        if name in ("scan", "while", "cond"):
            return self._structured(name, params, operands)
        inner = params.get("call_jaxpr", params.get("jaxpr"))
        if inner is not None:
            opened = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
            if len(opened.invars) == len(operands):
                return self._through(opened, _of_consts(getattr(inner, "consts", ())), operands)
        for which, size in _indexed(equation):
            for leaf in _indices(operands[which]):
                self.sizes[leaf] = min(size, self.sizes.get(leaf, size))
        # `labels[:, None] == jnp.arange(10)` makes one-hot labels: it says how many there are.
        if name in _COMPARISONS:
            for one, other in ((0, 1), (1, 0)):
                for size in (mark.size for mark in operands[other] if isinstance(mark, _Count)):
                    for leaf in _indices(operands[one]):
                        self.sizes[leaf] = min(size, self.sizes.get(leaf, size))
        joined = frozenset().union(*operands)
        if name == "axis_index":
            joined |= {DEVICE}
        if name == "iota":
            joined |= {_Count(params["shape"][params["dimension"]])}
        # What a device draws by its number may differ from one device and be right, as for dropout; nothing else may.
        if name.startswith(("random_", "rng_")) and DEVICE in joined:
            joined = joined - {DEVICE} | {DRAWN}
        if any(_rounds(atom.aval) for atom in equation.invars):
            joined |= {FLOAT}
        self.dtypes |= {out.aval.dtype for out in equation.outvars if _rounds(out.aval)}
        plain = frozenset(mark for mark in joined if isinstance(mark, str))
        whole = joined if name in _LIKE_ITS_OPERANDS or name == "iota" else plain
        return [whole if _is_integer(out.aval) else plain for out in equation.outvars]

    def _structured(self, name: str, params: Mapping[str, Any], operands: list[Marks]) -> Sequence[Marks]:
        if name == "cond":
            index, *rest = operands
            each = [self._through(b.jaxpr, _of_consts(b.consts), rest) for b in params["branches"]]
            return [frozenset().union(index, *results) for results in zip(*each, strict=True)]
        if name == "scan":
            num_consts, num_carry = scan_operands(params)
            body, consts, rest = params["jaxpr"], operands[:num_consts], operands[num_consts:]
            carry, xs = rest[:num_carry], rest[num_carry:]
        else:
            first, second = params["cond_nconsts"], params["body_nconsts"]
            body, consts, xs = params["body_jaxpr"], operands[first : first + second], []
            carry = operands[first + second :]
            num_carry = len(carry)
        while True:  # the carry gathers marks from one iteration to the next
            results = self._through(body.jaxpr, _of_consts(body.consts), [*consts, *carry, *xs])
            grown = [before | after for before, after in zip(carry, results[:num_carry], strict=True)]
            if grown == carry:
                return [*grown, *results[num_carry:]]
            carry = grown


def _of_consts(consts: Iterable[Any]) -> list[Marks]:
    return [_of_const(const) for const in consts]


def _of_const(const: Any) -> Marks:
    """Return the marks of a captured count, such as `np.arange(10)`: labels are compared with it."""
    dtype, size = getattr(const, "dtype", None), getattr(const, "size", 0)
    # A larger array is hardly what labels are compared with, and looking at it would take time.
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or not 1 < size <= 2**20:
        return frozenset()
    values = np.asarray(const).ravel()
    return frozenset({_Count(size)}) if np.array_equal(values, np.arange(size)) else frozenset()


def _rounds(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact)


def _is_integer(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", bool), jnp.integer)


def _indices(marks: Marks) -> list[int]:
    return [mark.leaf for mark in marks if isinstance(mark, _Index)]


def _indexed(equation: Any) -> list[tuple[int, int]]:
    """Return which operands index something, and how many values they may take."""
    name, params = equation.primitive.name, equation.params
    shape: Sequence[int] = getattr(equation.invars[0].aval, "shape", ()) if equation.invars else ()
    if name == "gather":
        dims: tuple[int, ...] = params["dimension_numbers"].start_index_map
        return [(1, shape[dim] - params["slice_sizes"][dim] + 1) for dim in dims]
    if name.startswith("scatter"):
        dims = params["dimension_numbers"].scatter_dims_to_operand_dims
        return [(1, shape[dim]) for dim in dims]
    if name == "dynamic_slice":
        return [(1 + dim, shape[dim] - size + 1) for dim, size in enumerate(params["slice_sizes"])]
    if name == "dynamic_update_slice":
        sizes: Sequence[int] = equation.invars[1].aval.shape
        return [(2 + dim, shape[dim] - size + 1) for dim, size in enumerate(sizes)]
    return []
