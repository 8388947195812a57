"""Count what one device computes, and how much memory it touches, in one step of a compiled program.

The bytes of a fusion are those of its inputs and outputs; of a slice, only the slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_collectives import GOES_ON, has_collective, is_collective
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape, dtype_bits, total_bytes
from outlay.analysis.hlo.loops import runs_per_step, trip_count
from outlay.analysis.hlo.opcodes import CONTROL, KINDS, NAMES, RESHAPED, both_halves
from outlay.analysis.work.products import PRODUCTS, custom_call_target, dtype_of_product, flops_of_product, numbers

_FREE = (
    NAMES
    | CONTROL
    | KINDS["barriers"]
    | (KINDS["asks"] - {"set-dimension-size"})
    | both_halves(frozenset(("send", "recv")))
    | {"constant", "async-start", "async-update"}
)
"""Instructions that take no time of their own: their bodies are counted separately, or there is nothing to do."""

SLICES = KINDS["cuts"] | KINDS["looks up"]
_SAME_BYTES = RESHAPED | {"get-tuple-element"}
"""Operations that pass their operand on inside a fusion, so that a slice of the result is a slice of the operand."""


@dataclass(frozen=True)
class AcrossRows:
    """What an operation reads across the rows of an array: on a CPU each entry costs a whole cache line.

    Attributes:
        num_bytes: the number of bytes of the entries.
        pitch: bytes from one entry to the next that is read.
    """

    num_bytes: int
    pitch: int


@dataclass(frozen=True)
class Operation:
    """One instruction that a device executes.

    Attributes:
        name: in the compiled program.
        flops: the FLOPs of its matrix products and convolutions, in one run.
        dtype: the dtype that those multiply, as targets name it; empty if there are none.
        num_bytes: what it reads and writes in one run.
        across_rows: the part of that which it reads across the rows of arrays.
        runs: how often it runs in a step.
    """

    name: str
    flops: float
    dtype: str
    num_bytes: int
    across_rows: tuple[AcrossRows, ...]
    runs: int


@dataclass(frozen=True)
class CompiledWork:
    """The work of one device in a step, without what it sends and receives.

    Attributes:
        operations: every instruction that is executed, except collectives.
        unknown: what could not be counted, in words, each kind once.
    """

    operations: tuple[Operation, ...]
    unknown: tuple[str, ...]

    @property
    def flops_by_dtype(self) -> dict[str, float]:
        """FLOPs of matrix products and convolutions, by what they multiply."""
        flops: dict[str, float] = {}
        for operation in self.operations:
            if operation.flops:
                flops[operation.dtype] = flops.get(operation.dtype, 0.0) + operation.flops * operation.runs
        return flops

    @property
    def flops(self) -> float:
        """FLOPs of matrix products and convolutions."""
        return sum(self.flops_by_dtype.values())

    @property
    def bytes_accessed(self) -> float:
        """Bytes read and written in memory; for slices and updates in place, only the slices."""
        return float(sum(operation.num_bytes * operation.runs for operation in self.operations))


def compiled_work(module: HloModule) -> CompiledWork:
    """Count what one device does in a step: products with their dtypes, and bytes at the level of fusions.

    Products are `dot` and `convolution`, alone or in a fusion, and calls of cuBLAS, cuDNN and oneDNN for them; cuDNN's
    attention, by its shapes and mask; and Pallas kernels, by their `cost_estimate`.

    Args:
        module: the optimized program of one device.
    """
    unknown: dict[str, None] = {}
    operations: list[Operation] = []
    for name, (runs, exact) in runs_per_step(module).items():
        if not exact:
            unknown |= dict.fromkeys(_guessed(module, name))
        operations += _operations(module.computations[name], runs, module, unknown)
    return CompiledWork(tuple(operations), tuple(unknown))


def _guessed(module: HloModule, name: str) -> Iterator[str]:
    """Yield why it is not certain how often a computation runs."""
    for caller, one in module.callers.get(name, ()):
        if one.opcode == "conditional":
            yield "a conditional branch: the most expensive one counts"
        elif one.opcode == "while" and trip_count(module, caller, one) is None:
            yield "a loop whose trip count is not in the program: counted once"


def _operations(
    computation: Computation, runs: int, module: HloModule, unknown: dict[str, None]
) -> Iterator[Operation]:
    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode in _FREE or is_collective(opcode) or opcode.endswith("-done"):
            continue
        fused = module.fused(instruction)
        flops, dtype = _products(instruction, computation, fused, module, unknown)
        # A TPU's fusion around a collective takes the links' time, which is priced apart; one with products computes,
        # too.
        if not flops and fused is not None and has_collective(fused):
            continue
        num_bytes = instruction_bytes(instruction, computation, module)
        yield Operation(instruction.name, flops, dtype, num_bytes, read_across_rows(fused), runs)


def _products(
    instruction: Instruction,
    computation: Computation,
    fused: Computation | None,
    module: HloModule,
    unknown: dict[str, None],
) -> tuple[float, str]:
    """Return the FLOPs of the products in an instruction, nested fusions included, and what the largest multiplies."""
    if fused is None:
        if instruction.opcode not in PRODUCTS:
            return 0.0, ""
        operands = computation.shapes(instruction.operands)
        flops = flops_of_product(instruction, operands)
        if flops is None:
            unknown[f"custom call {custom_call_target(instruction)}: FLOPs unknown; not counted"] = None
        return (flops, dtype_of_product(instruction, operands)) if flops else (0.0, "")
    counted = [inner for inner in fused.instructions.values() if inner.opcode in PRODUCTS or "fusion" in inner.opcode]
    inside = [_products(inner, fused, module.fused(inner), module, unknown) for inner in counted]
    # One dtype has to stand for the fusion: that of its largest product, which takes most of the time.
    return sum((flops for flops, _ in inside), 0.0), max(inside, default=(0.0, ""))[1]


def instruction_bytes(instruction: Instruction, computation: Computation, module: HloModule) -> int:
    """Return the bytes that an instruction reads and writes in one run."""
    fused = module.fused(instruction)
    if fused is not None:
        return _fusion_bytes(instruction, computation, fused, module)
    operands = computation.shapes(instruction.operands)
    if instruction.opcode in SLICES:
        return 2 * _moved(instruction.shapes) + _moved(operands[1:])
    # In place: only the update is read and written.
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _moved(operands[1:2]) + _moved(operands[2:])
    if instruction.opcode == "scatter":
        return _scatter_bytes(operands)
    # An operand that is used twice is read once.
    read = _moved(computation.shapes(dict.fromkeys(instruction.operands)))
    if instruction.opcode.endswith("-start"):  # an asynchronous copy, whose result repeats the operand
        return 2 * read
    return read + _moved(instruction.shapes)


def read_across_rows(fused: Computation | None) -> tuple[AcrossRows, ...]:
    """Return what a fusion transposes in memory: inside a fusion, a copy changes the order of dims."""
    if fused is None or "copy" not in fused.opcodes:
        return ()
    copies = [one for one in fused.instructions.values() if one.opcode == "copy"]
    each = (_across_rows(one.shapes[0], fused.instructions.get(one.operands[0]), fused) for one in copies)
    return tuple(across for across in each if across is not None)


def _across_rows(result: Shape, source: Instruction | None, fused: Computation) -> AcrossRows | None:
    num_bytes, itemsize = total_bytes((result,)), max(dtype_bits(result.dtype) // 8, 1)
    if sum(size > 1 for size in result.dims) < 2:
        return None
    if source is None or source.opcode != "transpose":  # it came in another order
        return AcrossRows(num_bytes, result.dims[-2] * itemsize)
    innermost = numbers(source.attributes["dimensions"])[-1]
    distance = math.prod(_stored_dims(fused.instructions[source.operands[0]], fused)[innermost + 1 :])
    return AcrossRows(num_bytes, distance * itemsize) if distance > 1 else None


def _stored_dims(value: Instruction, fused: Computation) -> tuple[int, ...]:
    """Return the dims of the array in memory that a value is computed from: for a slice, the sliced array's."""
    dims = value.shapes[0].dims
    sources = [fused.instructions[name] for name in value.operands if name in fused.instructions]
    if value.opcode in ("slice", "dynamic-slice"):
        return sources[0].shapes[0].dims
    alike = [source for source in sources if source.shapes[0].dims == dims and source.opcode != "broadcast"]
    return _stored_dims(alike[0], fused) if alike else dims


def _moved(shapes: tuple[Shape, ...]) -> int:
    """Return the bytes of arrays, except arrays that stay on the chip."""
    return sum([shape.num_bytes for shape in shapes if not shape.is_on_chip])


def _scatter_bytes(operands: tuple[Shape, ...]) -> int:
    """Count a scatter: operands, one array of indices, and as many updates; what is updated is read and written."""
    num_updated = len(operands) // 2
    return 2 * _moved(operands[num_updated + 1 :]) + _moved(operands[num_updated : num_updated + 1])


def _fusion_bytes(instruction: Instruction, computation: Computation, fused: Computation, module: HloModule) -> int:
    read, passed = 0, _handed_on(instruction, fused)
    for number, name in enumerate(instruction.operands):
        if name not in computation.instructions or name in instruction.operands[:number] or number in passed.values():
            continue
        whole = _moved(computation.instructions[name].shapes)
        inner = fused.parameter(number)
        read += whole if inner is None else int(min(whole, _read_of(inner, fused, module)))
    root = fused.root
    if root is None:  # the text was cut
        return read + _moved(instruction.shapes)
    inside = [fused.instructions[name] for name in root.operands if name in fused.instructions]
    results = enumerate(zip(inside if root.opcode == "tuple" else [root], root.shapes, strict=False))
    new = [result for number, (result, shape) in results if number not in passed and not shape.is_on_chip]
    return read + sum(_written(result, fused, module) for result in new)


def _handed_on(instruction: Instruction, fused: Computation) -> Mapping[int, int]:
    """Return, by number, results that are unchanged operands: buffers of a collective that runs on after it."""
    return instruction.aliased_operands if fused.name.startswith(GOES_ON) else {}


def _read_of(value: Instruction, fused: Computation, module: HloModule) -> float:
    """Return what a fusion reads of one operand: all of it, unless every use is a slice or an update in place.

    An inner fusion, which TPU programs have around products, reads what it needs of its own operand.
    """
    read = 0.0
    for user in fused.users.get(value.name, ()):
        is_first = user.operands[0] == value.name
        if user.opcode in SLICES and is_first:
            read += _moved(user.shapes)
        elif user.opcode == "dynamic-update-slice" and is_first:
            continue
        elif user.opcode in _SAME_BYTES:
            read += _read_of(user, fused, module)
        elif user.opcode == "fusion" and (inner := module.fused(user)) is not None:
            parameters = (inner.parameter(i) for i, name in enumerate(user.operands) if name == value.name)
            read += sum(_read_of(one, inner, module) if one else math.inf for one in parameters)
        else:
            return math.inf
    return read


def _written(result: Instruction, fused: Computation, module: HloModule) -> int:
    """Return what a fusion writes of one result: for an update in place, even in an inner fusion, only the update."""
    source = result
    while source.opcode in _SAME_BYTES and source.operands and source.operands[0] in fused.instructions:
        source = fused.instructions[source.operands[0]]
    if source.opcode == "dynamic-update-slice":
        return _moved(fused.instructions[source.operands[1]].shapes)
    inner = module.fused(source)
    if inner is not None and inner.root is not None and inner.root.opcode != "tuple":
        return min(_moved(result.shapes), _written(inner.root, inner, module))
    return _moved(result.shapes)
