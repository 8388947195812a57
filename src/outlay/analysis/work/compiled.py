"""Count what one device computes, and how much memory it touches, in one step of a compiled program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_collectives import has_collective, is_collective
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.loops import runs_per_step, trip_count
from outlay.analysis.hlo.opcodes import CONTROL, KINDS, NAMES, both_halves
from outlay.analysis.work.products import PRODUCTS, custom_call_target, dtype_of_product, flops_of_product
from outlay.analysis.work.traffic import AcrossRows, instruction_bytes, read_across_rows

_FREE = (
    NAMES
    | CONTROL
    | KINDS["barriers"]
    | (KINDS["asks"] - {"set-dimension-size"})
    | both_halves(frozenset(("send", "recv")))
    | {"constant", "async-start", "async-update"}
)
"""Instructions that take no time of their own: their bodies are counted separately, or there is nothing to do."""


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
