"""One product in FP8, with its gradients: a `dot_general` by the names of its dims, forward and backward alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from outlay.layout.fp8 import Float8, Fp8
from outlay.program.fp8.fp8_scaling import Narrow, narrowed, narrowed_by, rounded_in_blocks, scale_tally

Names = tuple[int, ...]
"""A name for each dim of an array; dims of several arrays with one name go together."""


class Rounded(NamedTuple):
    """An operand that was rounded beforehand.

    Attributes:
        narrow: it, in 8 bits.
        tally: which scale it has by itself (`scale_tally`), where it was rounded with another; None elsewhere.
    """

    narrow: Narrow
    tally: Any = None

    @classmethod
    def of(cls, x: jax.Array, form: Float8, scale: Any = None) -> Rounded:
        """Round an array, with a scale of its own if none is given."""
        return cls(narrowed(x, form)) if scale is None else cls(narrowed_by(x, scale, form), scale_tally(x, form))


@dataclass(frozen=True)
class Fp8Product:
    """A product of two arrays.

    Attributes:
        left: the names of the dims of the left operand.
        right: likewise of the right one.
        out: of the result.
        dtype: of the result.
        are_parameters: whether the left and the right operand come from parameters.
        rule: how numbers are rounded.
        is_apart: whether the compiler must not merge the product with what reads it.
        constraints: the operations that say where the operands and the result lie, or None for each of them; None if
            the compiler would multiply scaled operands in wide floats.
        is_recomputed: whether the backward pass computes the product again, right before its gradients.
        at_source: the context in which the backward pass is traced, so that it has the line of the product.
    """

    left: Names
    right: Names
    out: Names
    dtype: Any
    are_parameters: tuple[bool, bool]
    rule: Fp8
    is_apart: bool
    constraints: Sequence[Any] | None
    is_recomputed: bool
    at_source: Callable[[], AbstractContextManager[Any]]

    @classmethod
    def of(
        cls,
        eqn: Any,
        are_parameters: tuple[bool, bool],
        rule: Fp8,
        *,
        is_apart: bool,
        constraints: Sequence[Any] | None,
        is_recomputed: bool,
        at_source: Callable[[], AbstractContextManager[Any]],
    ) -> Fp8Product:
        """Read a traced `dot_general`."""
        (left_summed, right_summed), (left_batch, right_batch) = eqn.params["dimension_numbers"]
        num_left, num_right = (len(atom.aval.shape) for atom in eqn.invars)
        left = tuple(range(num_left))
        shared = dict(zip((*right_summed, *right_batch), (*left_summed, *left_batch), strict=True))
        right = tuple(shared.get(dim, num_left + dim) for dim in range(num_right))
        rest = [name for name in left if name not in (*left_summed, *left_batch)]
        own = [name for dim, name in enumerate(right) if dim not in shared]
        out = (*left_batch, *rest, *own)
        dtype = eqn.outvars[0].aval.dtype
        return cls(left, right, out, dtype, are_parameters, rule, is_apart, constraints, is_recomputed, at_source)

    def __call__(self, left: Any, right: Any, narrow: Callable[[int, Float8], Narrow]) -> jax.Array:
        """Multiply.

        Args:
            left: the left operand.
            right: the right operand.
            narrow: `narrow(place, form)` returns an operand in 8 bits, of which several products may share one.
        """
        if self.rule.scaling == "blockwise":
            return self._in_blocks(left, right)
        operands = (narrow(0, self.rule.forward), narrow(1, self.rule.forward))

        def of_gradient(gradient: jax.Array, _: Any) -> tuple[Narrow, None]:
            return narrowed(gradient, self.rule.backward), None

        return self._per_tensor(left, right, operands, None, of_gradient)

    def delayed(
        self, left: Any, right: Any, scales: Sequence[Any], tallies: Any, rounded: Sequence[Rounded | None]
    ) -> jax.Array:
        """Multiply with scales that are known.

        Args:
            left: the left operand.
            right: the right operand.
            scales: theirs, and that of the gradient that comes in.
            tallies: zeros (3, scales), whose gradient says which scales these three have (`delayed_scaling.py`).
            rounded: the operands, where they were rounded before; None elsewhere.
        """
        forward, backward = self.rule.forward, self.rule.backward
        values = jax.lax.stop_gradient((left, right))
        operands, of_operands = zip(
            *(
                Rounded.of(x, forward, scale) if before is None else before
                for x, scale, before in zip(values, scales[:2], rounded, strict=True)
            ),
            strict=True,
        )

        def of_gradient(gradient: jax.Array, residuals: Any) -> tuple[Narrow, jax.Array]:
            scale, *of_operands = residuals
            return narrowed_by(gradient, scale, backward), jnp.stack([*of_operands, scale_tally(gradient, backward)])

        return self._per_tensor(left, right, operands, tallies, of_gradient, (scales[2], *of_operands))

    def _per_tensor(
        self,
        left: Any,
        right: Any,
        operands: Sequence[Narrow],
        tallies: Any,
        of_gradient: Callable[[jax.Array, Any], tuple[Narrow, Any]],
        residuals: Any = (),
    ) -> jax.Array:
        """Multiply two operands in 8 bits.

        Args:
            left: the left operand, as it was.
            right: likewise.
            operands: both in 8 bits.
            tallies: what is differentiated besides; None for nothing.
            of_gradient: `of_gradient(gradient, residuals)` returns the gradient in 8 bits, and that of the tallies.
            residuals: what the backward pass needs for it.
        """
        dtypes = left.dtype, right.dtype

        def product(left: Any, right: Any, tallies: Any, operands: Any, residuals: Any) -> jax.Array:
            result = self._contracted({0: operands[0], 1: operands[1]}, 2, self.dtype)
            return jax.lax.optimization_barrier(result) if self.is_apart else result

        def forward(left: Any, right: Any, tallies: Any, operands: Any, residuals: Any) -> tuple[jax.Array, Any]:
            if self.is_recomputed and self._scales_operands:
                # Gradients read what the product has scaled, or the compiler exchanges an operand once for each.
                # Where nothing is recomputed, what is kept from one pass to the other stays in 8 bits.
                operands = [self._scaled(place, x, _wide(self.dtype)) for place, x in enumerate(operands)]
            # Not the function with the derivative: to the policy of a checkpoint it would be no product.
            return product(left, right, tallies, operands, residuals), (operands, residuals)

        def backward(saved: Any, gradient: jax.Array) -> tuple[Any, ...]:
            operands, residuals = saved
            with self.at_source():
                came_in, of_tallies = of_gradient(gradient, residuals)
                of_left = self._contracted({2: came_in, 1: operands[1]}, 0, dtypes[0])
                of_right = self._contracted({2: came_in, 0: operands[0]}, 1, dtypes[1])
            return of_left, of_right, of_tallies, None, None

        multiplied = jax.custom_vjp(product)
        multiplied.defvjp(forward, backward)
        return multiplied(left, right, tallies, tuple(operands), residuals)

    def _contracted(self, operands: Mapping[int, Narrow | jax.Array], into: int, dtype: Any) -> jax.Array:
        """Multiply numbers of 8 bits, and scale by powers of two: the same before and after, in bfloat16 too.

        Other narrow floats would overflow. Where it is said where operands or results lie, the operands are scaled: a
        scale behind the product would stand between a sum over devices and what splits it. XLA knows such a product
        as one in 8 bits once it has settled what devices exchange. Scaled operands stay where they were, or it might
        exchange these in wide floats.

        Args:
            operands: two of the left operand (0), the right one (1) and the result (2), in 8 bits or scaled.
            into: the third.
            dtype: its dtype.
        """
        names = self.left, self.right, self.out
        (first, one), (second, other) = operands.items()
        own, others, wide = names[first], names[second], _wide(dtype)
        if isinstance(one, Narrow) and isinstance(other, Narrow) and not self._scales_operands:
            result = _summed(one.values, other.values, own, others, names[into], wide)
            return (result * (one.scale * other.scale).astype(wide)).astype(dtype)
        left, right = (self._scaled(place, x, wide) for place, x in operands.items())
        return _summed(left, right, own, others, names[into], wide).astype(dtype)

    @property
    def _scales_operands(self) -> bool:
        """Whether operands are scaled before the product, not its result."""
        return any(self.constraints or ())

    def _scaled(self, place: int, x: Narrow | jax.Array, wide: Any) -> jax.Array:
        if not isinstance(x, Narrow):
            return x.astype(wide)
        scaled = x.values.astype(wide) * x.scale.astype(wide)
        constraint = self.constraints[place] if self.constraints else None
        return scaled if constraint is None else constraint.primitive.bind(scaled, **constraint.params)

    def _in_blocks(self, left: Any, right: Any) -> jax.Array:
        forward_form, backward_form = self.rule.forward, self.rule.backward

        def product(one: Any, names: Names, other: Any, other_names: Names, into: Names, forms: Any, are: Any) -> Any:
            left, right = (
                rounded_in_blocks(x, form, _block_dims(own, others, into, is_parameter=is_parameter))
                for x, own, others, form, is_parameter in (
                    (one, names, other_names, forms[0], are[0]),
                    (other, other_names, names, forms[1], are[1]),
                )
            )
            return _summed(left, right, names, other_names, into, self.dtype)

        def in_blocks(left: Any, right: Any) -> jax.Array:
            forms = (forward_form, forward_form)
            return product(left, self.left, right, self.right, self.out, forms, self.are_parameters)

        def backward(operands: Any, gradient: jax.Array) -> tuple[Any, Any]:
            left, right = operands
            forms, (is_left, is_right) = (backward_form, forward_form), self.are_parameters
            gradient = gradient.astype(left.dtype)
            with self.at_source():
                of_left = product(gradient, self.out, right, self.right, self.left, forms, (False, is_right))
                of_right = product(gradient, self.out, left, self.left, self.right, forms, (False, is_left))
            return of_left.astype(left.dtype), of_right.astype(right.dtype)

        multiplied = jax.custom_vjp(in_blocks)
        multiplied.defvjp(lambda left, right: (in_blocks(left, right), (left, right)), backward)
        return multiplied(left, right)


def _wide(dtype: Any) -> Any:
    """Return what numbers of 8 bits are scaled in: without rounding, since scales are powers of two."""
    return dtype if dtype == jnp.bfloat16 else jnp.float32


def _block_dims(own: Names, others: Names, into: Names, *, is_parameter: bool) -> list[int]:
    """Return the dims of a block: the last that is summed over; of a parameter also the last that is its own."""
    summed = [dim for dim, name in enumerate(own) if name in others and name not in into]
    free = [dim for dim, name in enumerate(own) if name not in others]
    return [*summed[-1:], *(free[-1:] if is_parameter else ())]


def _summed(one: Any, other: Any, names: Names, other_names: Names, into: Names, dtype: Any) -> jax.Array:
    """Multiply two arrays and sum over the dims that both have and the result has not."""
    shared = [name for name in names if name in other_names]
    batch = [name for name in shared if name in into]
    summed = [name for name in shared if name not in into]

    def dims(of: Names, picked: Sequence[int]) -> list[int]:
        return [of.index(name) for name in picked]

    numbers = ((dims(names, summed), dims(other_names, summed)), (dims(names, batch), dims(other_names, batch)))
    result = jax.lax.dot_general(one, other, numbers, preferred_element_type=dtype)
    own = [name for name in names if name not in shared]
    order = (*batch, *own, *(name for name in other_names if name not in shared))
    return result if order == into else jax.lax.transpose(result, [order.index(name) for name in into])
