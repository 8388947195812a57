"""The lifetimes of a scheduled program's buffers: the memory of a step in the order of its instructions.

A buffer is memory of its own. The result of an instruction has one, unless it is another name for a part of a tuple,
for the state of a loop or for a donated argument, or reuses the memory of an operand that is no longer needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape, shape_bytes
from outlay.analysis.hlo.opcodes import BARRIERS

BufferKind = Literal["argument", "output", "temporary"]

_NAMES = BARRIERS | {"bitcast", "while"}
"""Opcodes whose result is another name for the first operand; a loop updates its state in place."""

_NEVER_IN_PLACE = ("dot", "convolution", "custom-call", "reduce", "gather", "transpose", "all-gather", "all-to-all")
"""Opcodes that read operands after they have begun to write, so that they cannot write into an operand."""

_MAX_DEPTH = 10


@dataclass
class Buffer:
    """Memory that one instruction writes first.

    Attributes:
        computation: the name of the computation of that instruction.
        instruction: the instruction; for a loop's state the one inside the loop, for an argument the parameter.
        num_bytes: its size on one device.
        kind: `output` is a result of the program that reuses no donated argument.
        begin: the first point of the schedule at which it is alive.
        end: the last one.
    """

    computation: str
    instruction: Instruction
    num_bytes: int
    kind: BufferKind
    begin: int
    end: int


@dataclass(frozen=True)
class LiveBuffers:
    """The buffers of a program.

    Attributes:
        buffers: all buffers in the device's memory.
        points: for each point of the schedule its computation and instruction; a loop's body occurs once.
    """

    buffers: tuple[Buffer, ...]
    points: tuple[tuple[str, Instruction], ...]


def live_buffers(module: HloModule) -> LiveBuffers:
    """Follow a scheduled program through one step.

    Args:
        module: the program; its instructions stand in the order of execution.
    """
    walk = _Walk(module)
    entry = module.computations[module.entry]
    for one in entry.instructions.values():
        if one.opcode == "parameter":
            walk.names[entry.name, one.name] = [walk.new(entry, one, shape, "argument") for shape in one.shapes]
    donated = dict(module.input_output_alias)
    outputs: list[int] = []
    for position, shape in enumerate(entry.root.shapes if entry.root else ()):
        # A program that returns a single array has the empty index.
        number = donated.get((position,), donated.get(()))
        parameter = entry.parameter(number) if number is not None else None
        if parameter is not None and len(parameter.shapes) == 1:
            outputs += walk.names[entry.name, parameter.name]
        elif entry.root is not None:
            outputs.append(walk.new(entry, entry.root, shape, "output"))
    walk.run(entry, outputs)
    return walk.result()


class _Walk:
    """Walks the instructions in order and gives each array of a result its buffer, by number."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._buffers: list[Buffer] = []
        self._same: dict[int, int] = {}
        """Buffers that reuse the memory of another one."""
        self._points: list[tuple[str, Instruction]] = []
        self.names: dict[tuple[str, str], list[int]] = {}
        """The buffers of each instruction's arrays, by computation and name."""

    def new(self, block: Computation, one: Instruction, shape: Shape, kind: BufferKind = "temporary") -> int:
        """Add a buffer; its size is 0 if it does not lie in the device's memory."""
        size = 0 if shape.is_on_host or shape.is_on_chip else shape_bytes(shape)
        self._buffers.append(Buffer(block.name, one, size, kind, 0, 0))
        return len(self._buffers) - 1

    def result(self) -> LiveBuffers:
        """Return all buffers; the caller's live from the first point to the last."""
        last = max(0, len(self._points) - 1)
        own = [buffer for number, buffer in enumerate(self._buffers) if number not in self._same and buffer.num_bytes]
        for buffer in own:
            if buffer.kind != "temporary":
                buffer.end = last
        return LiveBuffers(tuple(own), tuple(self._points))

    def run(self, block: Computation, results: Sequence[int], depth: int = 0) -> None:
        """Walk a computation; its parameters have buffers already, and its result goes into these."""
        assigned: dict[tuple[str, int], int] = {}
        for position, number in enumerate(results if block.root else ()):
            assert block.root is not None
            self._assign(block, block.root.name, position, number, assigned)
        order = [one for one in block.instructions.values() if one.opcode != "parameter"]
        first = len(self._buffers)
        for one in order:
            self.names[block.name, one.name] = self._buffers_of(block, one, assigned)
        own = range(first, len(self._buffers))
        last = self._last_uses(block, order, own)
        ended: list[int] = []  # the last point of each instruction
        for at, one in enumerate(order):
            for number in self.names[block.name, one.name]:
                if number in own and self._buffers[number].begin < 0:
                    self._begin(block, one, number, at, last)
            self._points.append((block.name, one))
            if depth < _MAX_DEPTH:
                self._run_inner(block, one, depth + 1)
            ended.append(len(self._points) - 1)
        for number, at in last.items():
            self._buffers[number].end = ended[at]

    def _begin(self, block: Computation, one: Instruction, number: int, at: int, last: dict[int, int]) -> None:
        """Begin a result here: in the memory of an operand that ends here, or in memory of its own."""
        size = self._buffers[number].num_bytes
        self._buffers[number].begin = len(self._points)
        # What is sent or copied in the background is read until the done.
        if one.opcode in _NEVER_IN_PLACE or one.opcode.endswith("-start"):
            return
        for operand in map(self._root, self._of(block, one.operands)):
            if last.get(operand) == at and operand != number and self._buffers[operand].num_bytes == size:
                self._same[number] = operand
                last[operand] = last.pop(number, at)
                return

    def _last_uses(self, block: Computation, order: Sequence[Instruction], own: range) -> dict[int, int]:
        """Return for each buffer the position of the last instruction that needs it."""
        last: dict[int, int] = {}
        for at, one in enumerate(order):
            # Another name needs nothing itself; whoever takes it does, unless it is what the computation returns.
            is_name = one.opcode in ("tuple", "get-tuple-element", *_NAMES) and one.opcode != "while"
            numbers = self.names[block.name, one.name] if one.is_root or not is_name else []
            read = [] if is_name else self._of(block, one.operands)
            last.update((number, at) for number in (*numbers, *read) if number in own)
        root = self.names.get((block.name, block.root.name), []) if block.root else []
        last.update((number, len(order) - 1) for number in root if number in own)
        return last

    def _run_inner(self, block: Computation, one: Instruction, depth: int) -> None:
        """Walk the computations that an instruction calls, with the buffers of their arguments."""
        if one.opcode == "while":
            state = self.names[block.name, one.name]
            self._run_with(one.called("condition"), [state], [], depth)
            self._run_with(one.called("body"), [state], state, depth)
        elif one.opcode == "conditional":
            for number, branch in enumerate(one.calls, 1):
                given = self._of(block, one.operands[number : number + 1])
                self._run_with(branch, [given], self.names[block.name, one.name], depth)
        elif one.opcode == "call":
            given = [self._of(block, (operand,)) for operand in one.operands]
            self._run_with(one.called("to_apply", "calls"), given, self.names[block.name, one.name], depth)

    def _run_with(self, name: str, given: Sequence[list[int]], results: Sequence[int], depth: int) -> None:
        block = self._module.computations.get(name)
        if block is None:
            return
        for number, buffers in enumerate(given):
            parameter = block.parameter(number)
            if parameter is not None:
                self.names[block.name, parameter.name] = buffers
        self.run(block, results, depth)

    def _buffers_of(self, block: Computation, one: Instruction, assigned: dict[tuple[str, int], int]) -> list[int]:
        """Return the buffers of an instruction's arrays."""
        given = self._of(block, one.operands)
        if one.opcode == "tuple":
            return given
        if one.opcode in _NAMES:
            return given[: len(one.shapes)]
        if one.opcode == "get-tuple-element":
            return given[one.number or 0 :][:1] if len(one.shapes) == 1 else given
        if one.opcode.endswith(("-done", "-update")):
            # A done returns what its start has set aside, without the operands that the start returns before that.
            skipped = 0 if one.opcode.endswith("-update") else self._num_repeated(block, one)
            return given[skipped:][: len(one.shapes)]
        shared = dict(self._repeated(block, one))
        for result, operand in one.aliased_operands.items():
            shared[result] = len(block.shapes(one.operands[:operand]))
        numbers: list[int] = []
        for position, shape in enumerate(one.shapes):
            number = assigned.get((one.name, position))
            if position in shared and shared[position] < len(given):
                numbers.append(given[shared[position]])
            else:
                numbers.append(self._fresh(block, one, shape) if number is None else self._written(block, one, number))
        return numbers

    def _written(self, block: Computation, one: Instruction, number: int) -> int:
        """Return the buffer of a result; a loop's state belongs to the instruction inside the loop that writes it."""
        buffer = self._buffers[number]
        if buffer.kind == "temporary":
            buffer.computation, buffer.instruction = block.name, one
        return number

    def _fresh(self, block: Computation, one: Instruction, shape: Shape) -> int:
        number = self.new(block, one, shape)
        self._buffers[number].begin = -1  # until it runs
        return number

    def _assign(
        self, block: Computation, name: str, position: int, number: int, assigned: dict[tuple[str, int], int]
    ) -> None:
        """Let the instruction that makes an array of the result write to its buffer."""
        one = block.instructions.get(name)
        if one is None or one.opcode == "parameter":
            return
        if one.opcode == "tuple":
            for operand in one.operands:
                size = len(block.instructions[operand].shapes) if operand in block.instructions else 1
                if position < size:
                    return self._assign(block, operand, position, number, assigned)
                position -= size
            return
        if one.opcode == "get-tuple-element" and one.operands:
            return self._assign(block, one.operands[0], one.number or 0, number, assigned)
        if one.opcode in _NAMES and one.operands:
            return self._assign(block, one.operands[0], position, number, assigned)
        if one.opcode.endswith(("-done", "-update")) and one.operands:
            return self._assign(block, one.operands[0], position + self._num_repeated(block, one), number, assigned)
        assigned.setdefault((name, position), number)

    def _repeated(self, block: Computation, one: Instruction) -> dict[int, int]:
        """Return which results of an asynchronous start are its operands again: {result: operand}."""
        num = len(block.shapes(one.operands))
        if one.opcode == "copy-start":  # (destination, source, context)
            return {1: 0} if len(one.shapes) > 1 else {}
        if one.opcode.endswith("-start") and len(one.shapes) >= 2 * num:
            return {number: number for number in range(num)}
        return {}

    def _num_repeated(self, block: Computation, done: Instruction) -> int:
        """Count the operands that an asynchronous start returns before its results."""
        start = block.instructions.get(done.operands[0]) if done.operands else None
        while start is not None and start.opcode.endswith("-update") and start.operands:
            start = block.instructions.get(start.operands[0])
        return 0 if start is None or start.opcode == "copy-start" else len(self._repeated(block, start))

    def _of(self, block: Computation, names: Sequence[str]) -> list[int]:
        return [number for name in names for number in self.names.get((block.name, name), ())]

    def _root(self, number: int) -> int:
        while number in self._same:
            number = self._same[number]
        return number
