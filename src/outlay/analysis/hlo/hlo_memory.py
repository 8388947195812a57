"""What a device holds while a program runs, what the host holds for it, and what is copied between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlay.analysis.hlo.hlo_module import (
    Computation,
    HloModule,
    Instruction,
    Shape,
    once_per_module,
    shape_bytes,
    total_bytes,
)
from outlay.analysis.hlo.opcodes import BARRIERS, CONTROL, NAMES

_NAMES_ONLY = NAMES | CONTROL | BARRIERS | {"custom-call"}


@once_per_module
def constant_bytes(module: HloModule) -> int:
    """Return the bytes of the constants of a program, such as arrays that a function closes over.

    They exist as long as the program, on every device. Scalars are part of instructions and do not count.
    """
    return sum(
        total_bytes(one.shapes) for one in module.instructions_of("constant") if any(shape.dims for shape in one.shapes)
    )


def peak_bytes(module: HloModule, stats: Any, *, is_cpu: bool = True) -> int:
    """Return the most that a device holds: arguments, outputs without donated memory, temporaries and constants.

    The compiler's own peak is used if it is less, as on TPUs, whose temporaries take turns in memory; but not on CPU,
    where it leaves temporaries out. What is in host memory does not count.

    Args:
        module: the program.
        stats: the result of `compiled.memory_analysis()`, in which only the compiler's peak includes constants.
        is_cpu: whether it was compiled for CPU devices.
    """
    passed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    on_host = _on_host_but_counted(module, stats)
    summed = passed + stats.temp_size_in_bytes + constant_bytes(module) - on_host
    own = getattr(stats, "peak_memory_in_bytes", 0) - on_host
    return summed if is_cpu or own <= 0 else min(own, summed)


def host_bytes(module: HloModule, stats: Any) -> int:
    """Return what a program keeps in host memory: arguments, outputs without donated memory, temporaries."""
    counted = stats.host_argument_size_in_bytes + stats.host_output_size_in_bytes - stats.host_alias_size_in_bytes
    return _on_host_but_counted(module, stats) + counted + stats.host_temp_size_in_bytes


def _on_host_but_counted(module: HloModule, stats: Any) -> int:
    """Return arguments and outputs on the host that the compiler counts as the device's, as it does on GPU and CPU."""
    if stats.host_argument_size_in_bytes or stats.host_output_size_in_bytes:
        return 0
    entry = module.computations[module.entry]
    arguments = {one.number: one.shapes[:1] for one in entry.instructions.values() if one.opcode == "parameter"}
    donated = dict(module.input_output_alias)
    outputs = entry.root.shapes if entry.root else ()
    new = [shape for number, shape in enumerate(outputs) if (number,) not in donated]
    passed = [shape for shapes in arguments.values() for shape in shapes]
    return total_bytes(tuple(shape for shape in (*passed, *new) if shape.is_on_host))


@dataclass(frozen=True)
class HostCopy:
    """A copy by one instruction.

    Attributes:
        to_host: the direction.
        num_bytes: in one run; for an update in place, or a slice, only that part.
    """

    to_host: bool
    num_bytes: int


def host_copy(one: Instruction, block: Computation) -> HostCopy | None:
    """Return what an instruction copies between host and device; None for any other.

    Args:
        one: the instruction; for an asynchronous copy its start.
        block: the computation that holds it.
    """
    if one.opcode in _NAMES_ONLY or one.opcode.endswith(("-done", "-update")):
        return None
    taken = block.shapes(one.operands)
    on_host = _sizes((*one.shapes, *taken), is_on_host=True)
    if not on_host:
        return None
    on_device = _sizes((*one.shapes, *taken), is_on_host=False)
    if not on_device:
        return None
    # For a copied part, one side is the whole array and the other the part.
    return HostCopy(any(shape.is_on_host for shape in _results(one, len(taken))), min(max(on_host), max(on_device)))


def _sizes(shapes: tuple[Shape, ...], *, is_on_host: bool) -> list[int]:
    return [shape_bytes(shape) for shape in shapes if shape.dims and shape.is_on_host is is_on_host]


def _results(one: Instruction, num_taken: int) -> tuple[Shape, ...]:
    """Return the arrays that it returns; for the start of a copy, the results of its done."""
    if one.opcode == "copy-start":  # (destination, source, context)
        return one.shapes[:1]
    return one.shapes[num_taken:] if one.opcode.endswith("-start") else one.shapes
