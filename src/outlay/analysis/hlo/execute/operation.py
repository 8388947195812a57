"""One instruction about to be computed: its operands' values and what it may ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape

Products = Literal["float32", "tf32", "bfloat16"]
"""How a target's units for products take float32 at default precision: as it is, or rounded to one of these."""

_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Operation:
    """An instruction and the values of its operands.

    Attributes:
        instruction: the instruction.
        operands: their values; a tuple is a tuple.
        computation: the computation that it stands in.
        module: the program.
        axes: the axes of the mesh over whose devices the program runs, the slowest first.
        device_ids: JAX's numbers of these devices; needed for several slices only.
        products: how the target multiplies float32 at default precision.
        rounds: a truth value, known when the program runs: whether it is to be multiplied so, or as it is.
        run: computes a computation from the values of its parameters.
        values: what the instructions before it in its computation returned, by name.
    """

    instruction: Instruction
    operands: tuple[Any, ...]
    computation: Computation
    module: HloModule
    axes: tuple[str, ...]
    device_ids: tuple[int, ...]
    products: Products
    rounds: Any
    run: Callable[[Computation, tuple[Any, ...]], Any]
    values: Mapping[str, Any]

    @property
    def shape(self) -> Shape:
        """The shape of the result, or of its first array."""
        return self.instruction.shapes[0]

    @property
    def dtype(self) -> np.dtype:
        """The type of the result, or of its first array."""
        dtype = dtype_of(self.shape.dtype)
        if dtype is None:
            raise ValueError(f"values of type {self.shape.dtype} have no meaning here")
        return dtype

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return the numbers of an attribute, such as `dimensions={0,2}`; none if it is absent."""
        return tuple(map(int, _NUMBER.findall(self.instruction.attributes.get(attribute, ""))))

    def number(self, attribute: str, absent: int) -> int:
        """Return the number of an attribute."""
        return (*self.numbers(attribute), absent)[0]

    def applied(self, *attributes: str) -> Callable[..., Any]:
        """Return the computation that an attribute names, as a function."""
        computation = self.module.called(self.instruction, *attributes)
        if computation is None:
            raise ValueError(f"{self.instruction.name} names no computation that is in the text")
        return lambda *values: self.run(computation, values)

    def operand_shape(self, number: int) -> Shape:
        """Return the shape of an operand that is an array."""
        return self.computation.instructions[self.instruction.operands[number]].shapes[0]


Meaning = Callable[[Operation], Any]
Meanings = Mapping[str, Meaning]
