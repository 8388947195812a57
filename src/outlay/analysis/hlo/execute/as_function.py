"""Turn a compiled program into a JAX function of one device's arrays, so that it can run where its hardware is absent.

Loops stay loops and fusions become part of their caller; layouts, tiles and memory spaces fall away, and what starts
something that another instruction waits for is done at once. Nothing of XLA's compiler takes part: each operation
means what `jax.lax` computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.elementwise import ELEMENTWISE
from outlay.analysis.hlo.execute.exchanging import EXCHANGING
from outlay.analysis.hlo.execute.indexing import INDEXING
from outlay.analysis.hlo.execute.multiplying import MULTIPLYING, PRODUCT_CALLS
from outlay.analysis.hlo.execute.operation import Meaning, Operation, Products
from outlay.analysis.hlo.execute.reducing import REDUCING, REDUCING_CALLS
from outlay.analysis.hlo.execute.shaping import LIBRARY_CALLS, SHAPING
from outlay.analysis.hlo.execute.solving import SOLVER_CALLS, SOLVING
from outlay.analysis.hlo.execute.transferring import (
    SLICE_CALLS,
    TRANSFERRING,
    can_be_computed,
    check_slices,
    is_left_out,
)
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction


def _inline(operation: Operation) -> Any:
    return operation.applied("calls", "to_apply", "called_computations")(*operation.operands)


def _while(operation: Operation) -> Any:
    (state,) = operation.operands
    return lax.while_loop(operation.applied("condition"), operation.applied("body"), state)


def _conditional(operation: Operation) -> Any:
    chosen, *values = operation.operands
    attributes = operation.instruction.attributes
    if "branch_computations" in attributes:
        names = [name.strip("% ") for name in attributes["branch_computations"].strip("{}").split(",")]
    else:
        names = [attributes[f"{which}_computation"].lstrip("%") for which in ("true", "false")]
    computations = [operation.module.computations[name] for name in names]
    branches = [_branch(operation, one, value) for one, value in zip(computations, values, strict=True)]
    if chosen.dtype == bool:
        return lax.cond(chosen, *branches)
    # A number that no branch has means the last.
    return lax.switch(jnp.where((chosen < 0) | (chosen >= len(branches)), len(branches) - 1, chosen), branches)


def _branch(operation: Operation, computation: Computation, value: Any) -> Callable[[], Any]:
    return lambda: operation.run(computation, (value,))


def _async_start(operation: Operation) -> Any:
    return operation.operands, _inline(operation)


def _copy_start(operation: Operation) -> Any:
    (value,) = operation.operands
    return value, value


def _slice_start(operation: Operation) -> Any:
    return operation.operands[0], SHAPING["slice"](operation)


def _second(operation: Operation) -> Any:
    return operation.operands[0][1]


def _custom_call(operation: Operation) -> Any:
    if is_left_out(operation.instruction, operation.computation):
        return ()
    return _CALLS[_target(operation.instruction)](operation)


_CALLS: dict[str, Meaning] = {**PRODUCT_CALLS, **SOLVER_CALLS, **REDUCING_CALLS, **LIBRARY_CALLS, **SLICE_CALLS}
_CONTROL: dict[str, Meaning] = {
    "async-done": _second,
    "async-start": _async_start,
    "async-update": lambda operation: operation.operands[0],
    "call": _inline,
    "call-done": _second,
    "call-start": _async_start,
    "conditional": _conditional,
    "copy-done": _second,
    "copy-start": _copy_start,
    "custom-call": _custom_call,
    "fusion": _inline,
    "fusion-done": _second,
    "fusion-start": _async_start,
    "slice-done": _second,
    "slice-start": _slice_start,
    "while": _while,
}
OPERATIONS: dict[str, Meaning] = {
    **ELEMENTWISE,
    **SHAPING,
    **INDEXING,
    **REDUCING,
    **MULTIPLYING,
    **SOLVING,
    **EXCHANGING,
    **TRANSFERRING,
    **_CONTROL,
}
"""What each operation of XLA computes, by opcode."""


def _target(instruction: Instruction) -> str:
    return instruction.attributes.get("custom_call_target", "").strip('"')


@dataclass(frozen=True)
class UnknownOperation:
    """Something in a compiled program whose meaning is not known here, so that it cannot be run.

    Attributes:
        name: the opcode, or `custom-call` and its target.
        line: the user's line, or the innermost that the compiler kept; empty without one.
        count: how often it stands in the program.
    """

    name: str
    line: str
    count: int

    def __str__(self) -> str:
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{self.name}{times}" + (f" ({self.line})" if self.line else "")


_NO_KERNELS: Mapping[str, HloModule] = MappingProxyType({})


def unknown_operations(
    module: HloModule, kernels: Mapping[str, HloModule] = _NO_KERNELS
) -> tuple[UnknownOperation, ...]:
    """Return the operations of a program that cannot be computed here, grouped by line.

    Args:
        module: the program.
        kernels: what custom calls of it compute, by the name of the instruction.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> unknown_operations(parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4]) -> f32[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = f32[4]{0} custom-call(%x), custom_call_target="someones_kernel"
        ... }'''))
        (UnknownOperation(name='custom-call someones_kernel', line='', count=1),)
    """
    counts: dict[tuple[str, str], int] = {}
    for one, computation in itertools.chain(_reached(module), *map(_reached, kernels.values())):
        if one.opcode == "parameter" or one.name in kernels:
            continue
        if name := _name_if_unknown(one, computation):
            line = str(one.frames[0]) if one.frames else ""
            counts[name, line] = counts.get((name, line), 0) + 1
    return tuple(UnknownOperation(name, line, count) for (name, line), count in counts.items())


def _name_if_unknown(one: Instruction, computation: Computation) -> str:
    if one.opcode == "custom-call":
        is_known = _target(one) in _CALLS or is_left_out(one, computation)
        return "" if is_known else f"custom-call {_target(one)}"
    if one.opcode in TRANSFERRING:
        return "" if can_be_computed(one, computation) else one.opcode
    return "" if one.opcode in OPERATIONS else one.opcode


def num_left_out(module: HloModule) -> int:
    """Return how many callbacks on the host are left out, since they return nothing that is used."""
    return sum(is_left_out(one, computation) for one, computation in _reached(module))


def _reached(module: HloModule) -> Iterator[tuple[Instruction, Computation]]:
    """Yield the instructions of the computations that the entry leads to, each with its computation."""
    pending, seen = [module.entry], {module.entry}
    while pending:
        computation = module.computations.get(pending.pop())
        if computation is None:
            continue
        for one in computation.instructions.values():
            yield one, computation
            called = [name for name in one.calls if name not in seen]
            seen.update(called)
            pending += called


def as_function(
    module: HloModule,
    axes: tuple[str, ...],
    *,
    device_ids: tuple[int, ...] = (),
    products: Products = "float32",
    kernels: Mapping[str, HloModule] = _NO_KERNELS,
) -> Callable[..., tuple[Any, ...]]:
    """Return a program as a function of one device's arrays, to be mapped over devices by `jax.shard_map`.

    Args:
        module: the program.
        axes: the axes of the mesh that it is mapped over, whose devices count as the program's do.
        device_ids: JAX's numbers of these devices; needed for several slices only.
        products: how the target multiplies float32 at default precision.
        kernels: what custom calls of it compute, by the name of the instruction.

    Returns:
        A function of a truth value and the entry's parameters that returns the entry's results as a tuple. The truth
        value says whether float32 is multiplied as the target does it, or as it is.

    Raises:
        ValueError: when it is traced: an operation has no meaning here (see `unknown_operations`), or the devices of
            a slice do not follow one another.
    """

    def function(rounds: Any, *arrays: Any) -> tuple[Any, ...]:
        check_slices(device_ids, module.num_devices)

        def run(computation: Computation, values: tuple[Any, ...]) -> Any:
            known: dict[str, Any] = {}
            for name, one in computation.instructions.items():
                if one.opcode == "parameter":
                    known[name] = values[int(one.value)]
                    continue
                operands = tuple(known[operand] for operand in one.operands)
                if name in kernels:
                    kernel = as_function(kernels[name], axes, products=products)
                    results = kernel(rounds, *operands)
                    known[name] = results if len(one.shapes) > 1 else results[0]
                    continue
                known[name] = _computed(
                    Operation(one, operands, computation, module, axes, device_ids, products, rounds, run, known)
                )
            if computation.root is None:
                raise ValueError(f"computation {computation.name} has no result: the text was cut")
            return known[computation.root.name]

        result = run(module.computations[module.entry], arrays)
        return result if isinstance(result, tuple) else (result,)

    return function


def _computed(operation: Operation) -> Any:
    meaning = OPERATIONS.get(operation.instruction.opcode)
    if meaning is None:
        raise ValueError(f"{operation.instruction.opcode} has no meaning here")
    value = meaning(operation)
    if isinstance(value, tuple) or len(operation.instruction.shapes) != 1:
        return value
    if value.shape != operation.shape.dims:
        raise ValueError(f"{operation.instruction.name} is {operation.shape.dims} in the text, and {value.shape} here")
    # Any operation of a TPU may also round or widen what it returns.
    return value.astype(operation.dtype)
