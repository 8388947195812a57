"""The values that the text of a compiled program describes: its arrays, instructions and computations."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from outlay.analysis.hlo.opcodes import FUSIONS
from outlay.core.one_line import OneLine

_ARRAY = re.compile(r"([a-z]\w*+)\[([^\]]*+)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_HOST, _CHIP = "5", "1"  # memory spaces; the others are parts of the device
_TILED = "T("  # only TPU layouts are tiled; on GPUs space 1 is memory that NCCL has registered
_DIM = re.compile(r"\d{1,18}")
# Types whose names do not end in their width, or that hold two numbers.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")

_CALLED_NAME = re.compile(r"[^\s,{}%]++")
_ALIASED = re.compile(r"\{(\d{0,9})\}: \((\d{1,9})")  # `{1}: (0, {})`: result 1, operand 0
Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Shape(OneLine):
    """One array of an instruction's result.

    Attributes:
        dtype: HLO's name, such as `f32`, `bf16`, `pred`, `s4`.
        dims: sizes on one device.
        is_on_host: whether it is in host memory, not on the device.
        is_on_chip: whether it is in a TPU's vector memory, which the compiler fills, not in the device's memory.
        layout: as XLA prints it, such as `1,0:T(8,128)`: the order of its entries in memory.
    """

    dtype: str
    dims: tuple[int, ...]
    is_on_host: bool = False
    is_on_chip: bool = False
    layout: str = field(default="", compare=False, repr=False)

    @cached_property
    def num_bytes(self) -> int:
        """Its bytes on one device, without padding. Instructions share shapes, so many ask for the same."""
        return -(-math.prod(self.dims) * dtype_bits(self.dtype) // 8)


def read_shapes(text: str) -> tuple[Shape, ...]:
    """Parse the arrays of a shape; for a tuple all of them in order.

    A dynamic dim (`<=8`) counts as its bound: that much memory is allocated for it.

    Examples:
        >>> [str(shape.dims) for shape in read_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, /*index=1*/(s32[<=4], pred[]))")]
        ['(8, 128)', '(4,)', '()']
    """
    return tuple(_shape(*parts) for parts in _ARRAY.findall(text))


def _shape(dtype: str, dims: str, layout: str) -> Shape:
    space = match[1] if (match := _SPACE.search(layout)) else ""
    is_on_chip = space == _CHIP and _TILED in layout
    sizes = tuple(map(int, _DIM.findall(dims)))
    return Shape(dtype, sizes, is_on_host=space == _HOST, is_on_chip=is_on_chip, layout=layout)


@functools.lru_cache(maxsize=256)
def dtype_bits(dtype: str) -> int:
    """Return the bits of an element. Types below a byte are packed; unknown types count zero.

    Args:
        dtype: HLO's name for it.

    Examples:
        >>> dtype_bits("bf16"), dtype_bits("f8e4m3fn"), dtype_bits("s4"), dtype_bits("pred")
        (16, 8, 4, 8)
    """
    if dtype in _BITS:
        return _BITS[dtype]
    width = _WIDTH.match(dtype)
    return int(width[1]) if width else 0


def shape_bytes(shape: Shape) -> int:
    """Return the bytes of an array on one device, without padding.

    Examples:
        >>> shape_bytes(Shape("f32", (4, 256))), shape_bytes(Shape("s4", (3,))), shape_bytes(Shape("token", ()))
        (4096, 2, 0)
    """
    return shape.num_bytes


def total_bytes(shapes: tuple[Shape, ...]) -> int:
    """Return the bytes of several arrays together."""
    return sum([shape.num_bytes for shape in shapes])


def dtype_names(shapes: tuple[Shape, ...]) -> str:
    """Return the types of several arrays, each named once.

    Examples:
        >>> dtype_names((Shape("f32", (2,)), Shape("bf16", ()), Shape("f32", ())))
        'f32+bf16'
    """
    return "+".join(dict.fromkeys(shape.dtype for shape in shapes))


def called_names(text: str) -> list[str]:
    """Return the names of computations in the text of an attribute.

    >>> called_names("{%body.1, %body.2}")
    ['body.1', 'body.2']
    """
    return _CALLED_NAME.findall(text)


def bounded_int(text: str) -> int | None:
    """Return the number in a text; None if there is none, or one so long that Python refuses to read it."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True)
class SourceLine:
    """A line of source code, and the function around it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, init=False)
class Instruction(OneLine):
    """An instruction: one line of a computation.

    Attributes:
        name: without the percent sign.
        opcode: such as `fusion`, `all-gather-start`, `while`.
        shapes: the arrays of the result; for a tuple all of them in order, nested tuples flattened.
        operands: names of the operands.
        value: what is written in their place: the literal of a constant, the number of a parameter.
        attributes: what follows the operands, by name, as raw text: `replica_groups`, `dimensions`, `to_apply`, ...
        op_name: the path of JAX scopes in the metadata, such as `jit(step)/transpose(jvp())/while/body/dot_general`.
        frames: the source lines that led to it, innermost first; empty if the compiler kept none.
        is_root: whether it is its computation's result.
        calls: names of the computations that it runs or applies.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    value: str
    attributes: Mapping[str, str]
    op_name: str
    frames: tuple[SourceLine, ...]
    is_root: bool
    calls: tuple[str, ...]

    def __init__(
        self,
        *,
        name: str,
        opcode: str,
        shapes: tuple[Shape, ...],
        operands: tuple[str, ...],
        value: str,
        attributes: Mapping[str, str],
        op_name: str,
        frames: tuple[SourceLine, ...],
        is_root: bool,
        calls: tuple[str, ...],
    ) -> None:
        # A program has hundreds of thousands of these, and what `dataclass` would write here takes as long as all else
        # that is done to read a line.
        self.__dict__.update(
            name=name,
            opcode=opcode,
            shapes=shapes,
            operands=operands,
            value=value,
            attributes=attributes,
            op_name=op_name,
            frames=frames,
            is_root=is_root,
            calls=calls,
        )

    @cached_property
    def number(self) -> int | None:
        """The number of a parameter, or of the element of a `get-tuple-element`; None for others."""
        return bounded_int(self.value if self.opcode == "parameter" else self.attributes.get("index", ""))

    @property
    def aliased_operands(self) -> dict[int, int]:
        """By number, the results that are stored in the buffer of an operand, and that operand."""
        pairs = _ALIASED.findall(self.attributes.get("output_to_operand_aliasing", ""))
        return {int(result or 0): int(operand) for result, operand in pairs}

    def called(self, *attributes: str) -> str:
        """Return the name of the computation in the first of these attributes that it has; empty without any."""
        return next((name for key in attributes for name in called_names(self.attributes.get(key, ""))), "")


@dataclass(frozen=True)
class Computation(OneLine):
    """A function of the program: the entry, a loop's body, a fusion, a reduction.

    Attributes:
        name: without the percent sign.
        instructions: by name, in the order of the text (of a scheduled module the order of execution).
    """

    name: str
    instructions: Mapping[str, Instruction]

    @cached_property
    def root(self) -> Instruction | None:
        """Its result; None if the text was cut."""
        return next((one for one in self.instructions.values() if one.is_root), None)

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """The opcodes of its instructions: what it does not contain is known without looking at each of them."""
        return frozenset([one.opcode for one in self.instructions.values()])

    @cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """The instructions that take each one as an operand."""
        users: dict[str, list[Instruction]] = {}
        for one in self.instructions.values():
            for operand in dict.fromkeys(one.operands):
                users.setdefault(operand, []).append(one)
        return {name: tuple(takers) for name, takers in users.items()}

    @cached_property
    def uses(self) -> Mapping[str, Sequence[tuple[Instruction, int]]]:
        """For each instruction its users, with the operand number; a user that takes it twice is listed twice."""
        uses: dict[str, list[tuple[Instruction, int]]] = {}
        for one in self.instructions.values():
            for number, operand in enumerate(one.operands):
                uses.setdefault(operand, []).append((one, number))
        return uses

    def shapes(self, names: Iterable[str]) -> tuple[Shape, ...]:
        """Return the arrays that some of its instructions return, such as the operands of one, tuples flattened."""
        known = self.instructions
        return tuple([shape for name in names if name in known for shape in known[name].shapes])

    def parameter(self, number: int) -> Instruction | None:
        """Return one of its parameters."""
        return self._parameters.get(str(number))

    @cached_property
    def _parameters(self) -> dict[str, Instruction]:
        return {one.value: one for one in self.instructions.values() if one.opcode == "parameter"}


@dataclass(frozen=True)
class HloModule(OneLine):
    """A compiled program.

    Attributes:
        name: the name of the module.
        num_partitions: the devices it is partitioned over.
        num_replicas: copies of that partitioning; 1 for everything from `jax.jit`.
        is_scheduled: whether instructions are in the order of execution.
        computations: by name.
        entry: the name of the computation that runs first.
        input_output_alias: (output index, parameter number) of each donated input that is used; the index is a tuple.
        skipped: lines that could not be read, as (line number, text).
        cut_in: the computation inside of which the text ends, or what it lacks; empty for a whole text.
        derived: what `once_per_module` has computed from it.
    """

    name: str
    num_partitions: int
    is_scheduled: bool
    computations: Mapping[str, Computation]
    entry: str
    input_output_alias: tuple[tuple[tuple[int, ...], int], ...] = ()
    skipped: tuple[tuple[int, str], ...] = ()
    cut_in: str = ""
    num_replicas: int = 1
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_devices(self) -> int:
        """The devices that the program runs on."""
        return self.num_partitions * self.num_replicas

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Yield every instruction with its computation, also in loops and fusions."""
        for computation in self.computations.values():
            for one in computation.instructions.values():
                yield computation, one

    @cached_property
    def places(self) -> Mapping[str, tuple[Computation, Instruction]]:
        """Each instruction, by name, with its computation."""
        return {one.name: (computation, one) for computation, one in self.instructions()}

    def instructions_of(self, opcode: str) -> Iterator[Instruction]:
        """Yield the instructions of one opcode, in the order of the text."""
        for computation in self.computations.values():
            if opcode in computation.opcodes:
                yield from (one for one in computation.instructions.values() if one.opcode == opcode)

    def called(self, instruction: Instruction, *attributes: str) -> Computation | None:
        """Return the computation in the first of these attributes that an instruction has; None without one."""
        return self.computations.get(instruction.called(*attributes))

    def fused(self, instruction: Instruction) -> Computation | None:
        """Return the computation of a fusion; None for anything else."""
        return self.entered(instruction) if instruction.opcode in FUSIONS else None

    def entered(self, instruction: Instruction) -> Computation | None:
        """Return the computation that a fusion, a call or an asynchronous start runs."""
        return self.computations.get(instruction.calls[0]) if instruction.calls else None

    @cached_property
    def callers(self) -> Mapping[str, tuple[tuple[str, Instruction], ...]]:
        """For each computation the (computation, instruction) pairs that run it or apply it."""
        callers: dict[str, list[tuple[str, Instruction]]] = {}
        for computation, one in self.instructions():
            for name in dict.fromkeys(one.calls):
                callers.setdefault(name, []).append((computation.name, one))
        return {name: tuple(pairs) for name, pairs in callers.items()}


def once_per_module(compute: Callable[[HloModule], Facts]) -> Callable[[HloModule], Facts]:
    """Compute what follows from a program alone once for each program: several parts of a report ask for it.

    >>> counts = []
    >>> count = once_per_module(lambda module: counts.append(module.name))
    >>> module = HloModule("m", 1, True, {}, "main")
    >>> count(module), count(module), counts
    (None, None, ['m'])
    """

    @functools.wraps(compute)
    def computed(module: HloModule) -> Facts:
        if compute not in module.derived:
            module.derived[compute] = compute(module)
        return module.derived[compute]

    return computed
