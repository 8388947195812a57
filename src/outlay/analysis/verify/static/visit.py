"""One instruction about to be followed: what is known of its operands, and whom to tell what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape
from outlay.analysis.verify.static.spreads import REPLICATED, UNKNOWN, Cause, Spread, Tree, Value, mixed
from outlay.analysis.verify.static.static_verification import FaultKind

BY_USER = "shard_map"
"""What the scopes of a step name in which the user says what each device computes."""

_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Suspect:
    """Something in the text that no right program has.

    Attributes:
        kind: what it is.
        axis: the mesh axis.
        cause: where the value came to be as it is.
        place: the instruction that shows it.
        words: what is wrong, in words.
    """

    kind: FaultKind
    axis: str
    cause: Cause
    place: Cause
    words: str


@dataclass
class Reading:
    """A program that is being followed.

    Attributes:
        module: the program.
        axes: name and size of each mesh axis, the slowest first.
        by_compiler: whether all its exchanges are the compiler's, so that each must make a whole value of its parts.
        suspects: what was noticed, each once.
        is_noting: whether what is noticed counts: not before a loop's state is settled.
        seen: by computation and name, the last value of each instruction.
    """

    module: HloModule
    axes: tuple[tuple[str, int], ...]
    by_compiler: bool
    suspects: dict[tuple[str, ...], Suspect] = field(default_factory=dict)
    is_noting: bool = True
    seen: dict[tuple[str, str], Tree] = field(default_factory=dict)

    def note(self, suspect: Suspect) -> None:
        """Keep what was noticed, once for each axis and cause; a sum that the user's own parts lack may be meant so."""
        is_by_user = BY_USER in suspect.cause.instruction.op_name or BY_USER in suspect.place.instruction.op_name
        if self.is_noting and not (is_by_user and suspect.kind == "sum missing"):
            key = (suspect.kind, suspect.axis, suspect.cause.computation, suspect.cause.instruction.name)
            self.suspects.setdefault(key, suspect)


@dataclass(frozen=True)
class Visit:
    """An instruction and what is known of its operands.

    Attributes:
        instruction: the instruction.
        operands: what is known of each.
        computation: the computation that it stands in.
        reading: the program.
        run: follows a computation from what is known of its parameters.
        values: what is known of the instructions before it in its computation, by name.
    """

    instruction: Instruction
    operands: tuple[Tree, ...]
    computation: Computation
    reading: Reading
    run: Callable[[Computation, tuple[Tree, ...]], Tree]
    values: Mapping[str, Tree]

    @property
    def shape(self) -> Shape:
        """The shape of the result, or of its first array."""
        return self.instruction.shapes[0]

    @property
    def here(self) -> Cause:
        """This instruction as a cause."""
        return Cause(self.computation.name, self.instruction)

    @property
    def arrays(self) -> list[Value]:
        """The operands that are arrays."""
        return [one for one in self.operands if isinstance(one, Value)]

    def array(self, number: int) -> Value:
        """Return an operand that is an array; one that is not is unknown."""
        value = self.operands[number] if number < len(self.operands) else None
        return value if isinstance(value, Value) else self.unknown

    @property
    def num_axes(self) -> int:
        """How many mesh axes there are."""
        return len(self.reading.axes)

    @property
    def unknown(self) -> Value:
        """An array about which nothing is known."""
        return Value((UNKNOWN,) * self.num_axes)

    @property
    def replicated(self) -> Value:
        """An array that all devices have alike."""
        return Value((REPLICATED,) * self.num_axes)

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return the numbers of an attribute, such as `dimensions={0,2}`; none if it is absent."""
        return tuple(map(int, _NUMBER.findall(self.instruction.attributes.get(attribute, ""))))

    def number(self, attribute: str, absent: int) -> int:
        """Return the number of an attribute."""
        return (*self.numbers(attribute), absent)[0]

    def dims_of(self, number: int) -> tuple[int, ...]:
        """Return the dims of an operand."""
        operand = self.computation.instructions[self.instruction.operands[number]]
        return operand.shapes[0].dims if operand.shapes else ()

    def shape_of(self, number: int) -> Shape:
        """Return the shape of an operand."""
        return self.computation.instructions[self.instruction.operands[number]].shapes[0]

    def by_axis(self, rule: Callable[[int, list[Spread]], Spread], values: Iterable[Value]) -> tuple[Spread, ...]:
        """Return the spreads that a rule gives for each axis, from values that are not all replicated over it."""
        listed = list(values)
        spreads = []
        for axis in range(self.num_axes):
            held = [one.spreads[axis] for one in listed]
            same = all(one.kind == "replicated" for one in held)
            spreads.append(REPLICATED if same else rule(axis, held))
        return tuple(spreads)

    def used_whole(self, axis: int, spreads: Iterable[Spread]) -> Spread:
        """Return what becomes of values in an operation that needs them whole, and note a sum that is missing."""
        held = list(spreads)
        summands = [one for one in held if one.kind == "partial" and one.combiner == "add"]
        # What varies may be a summand, too, of which that is not known.
        is_known = all(one.kind in ("partial", "replicated") for one in held)
        if summands and is_known and self.reading.by_compiler:
            self.note("sum missing", axis, summands[0], "is used before it is summed over the devices")
        return mixed(held, self.here)

    def note(self, kind: FaultKind, axis: int, spread: Spread, words: str) -> None:
        """Keep something that no right program has."""
        name = self.reading.axes[axis][0]
        self.reading.note(Suspect(kind, name, spread.cause or self.here, self.here, words))


Rule = Callable[[Visit], Tree]
Rules = Mapping[str, Rule]
