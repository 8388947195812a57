"""A collective of a compiled program, as one value whatever its spelling in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlay.analysis.hlo.hlo_module import Instruction

CollectiveKind = Literal[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
]


@dataclass(frozen=True)
class HloCollective:
    """One collective: start and done of an asynchronous one are one.

    Attributes:
        kind: what it does.
        instruction: the instruction, of an asynchronous collective its start.
        computation: the name of the computation it stands in.
        groups: the devices that exchange with one another, as positions in the program's device assignment; of a
            permutation its (source, target) pairs.
        operand_bytes: on one device, padding not counted.
        result_bytes: on one device.
        dtype: HLO's name of what is moved; several are joined by "+".
        count: how often it runs in a step, trip counts of the loops around it multiplied.
        count_is_exact: False where a loop's trip count is not in the text; it then counts once.
        is_async: whether it has a start and a done, so that the device may compute meanwhile.
    """

    kind: CollectiveKind
    instruction: Instruction
    computation: str
    groups: tuple[tuple[int, ...], ...]
    operand_bytes: int
    result_bytes: int
    dtype: str
    count: int
    count_is_exact: bool
    is_async: bool

    @property
    def group_size(self) -> int:
        """How many devices take part in one exchange."""
        return max((len(group) for group in self.groups), default=1)
