"""The instructions that copy between the memory of a device and that of its host."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.analysis.hlo.dtypes import shape_bytes
from outlay.analysis.hlo.hlo_module import Computation, Instruction, Shape

_NAMES_ONLY = (
    *("tuple", "get-tuple-element", "parameter", "while", "conditional", "call", "optimization-barrier", "bitcast"),
    *("opt-barrier", "custom-call"),
)


@dataclass(frozen=True)
class HostCopy:
    """What one instruction copies.

    Attributes:
        to_host: which way.
        num_bytes: in one run; of an update in place, or of a slice, only that part.
    """

    to_host: bool
    num_bytes: int


def host_copy(one: Instruction, block: Computation) -> HostCopy | None:
    """What an instruction copies between host and device; None of any other.

    Args:
        one: the instruction; of an asynchronous copy that which starts it.
        block: the computation that it stands in.
    """
    if one.opcode in _NAMES_ONLY or one.opcode.endswith(("-done", "-update")):
        return None
    taken = [shape for name in one.operands if name in block.instructions for shape in block.instructions[name].shapes]
    on_host, on_device = _sizes((*one.shapes, *taken), is_on_host=True), _sizes((*one.shapes, *taken), is_on_host=False)
    if not on_host or not on_device:
        return None
    # Of a part that is copied one side is the whole array, the other is the part.
    return HostCopy(any(shape.is_on_host for shape in _results(one, len(taken))), min(max(on_host), max(on_device)))


def _sizes(shapes: tuple[Shape, ...], *, is_on_host: bool) -> list[int]:
    return [shape_bytes(shape) for shape in shapes if shape.dims and shape.is_on_host is is_on_host]


def _results(one: Instruction, num_taken: int) -> tuple[Shape, ...]:
    """The arrays that it gives, of what starts a copy those that it will have given."""
    if one.opcode == "copy-start":  # (destination, source, context)
        return one.shapes[:1]
    return one.shapes[num_taken:] if one.opcode.endswith("-start") else one.shapes
