"""A price: what the real compiler makes of one candidate, as plain data that goes between processes and to disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from outlay.core.quantities import format_range


@dataclass(frozen=True)
class Price:
    """One compiled candidate, for one device and one step.

    Attributes:
        seconds: the estimate, which candidates are ranked by; 0, as all other times and traffic,
            where the compiler ran out of the target's memory and made no program.
        seconds_low: the least time that the estimate gives a step.
        seconds_high: the most.
        parts: what the time is made of, in seconds, as in `Estimate.parts`.
        peak_bytes: the most memory at one time, by the compiler's own account.
        capacity: the memory of a device.
        fits: whether the program runs in it.
        room: the peak that fits without a doubt, beside what the runtime takes.
        flops: operations of the compiled program.
        bytes_by_axes: bytes sent over each mesh axis, or over several joined by "+".
        seconds_by_axes: what that takes, by the estimate, if nothing overlaps.
        crossing: those of them that run between hosts.
        num_findings: what `outlay.explain` finds fault with.
        compile_seconds: how long the compiler took.
    """

    seconds: float
    seconds_low: float
    seconds_high: float
    parts: Mapping[str, float]
    peak_bytes: int
    capacity: int
    fits: bool
    room: int
    flops: float
    bytes_by_axes: Mapping[str, int]
    seconds_by_axes: Mapping[str, float]
    crossing: tuple[str, ...]
    num_findings: int
    compile_seconds: float

    @property
    def range_in_words(self) -> str:
        """The estimated range of a step; empty where the compiler made no program."""
        return format_range(self.seconds_low, self.seconds_high) if self.parts else ""

    def times(self, factor: float) -> Price:
        """The same of so many steps, by which steps of different batches are compared; the memory is that of one."""
        return replace(
            self,
            seconds=self.seconds * factor,
            seconds_low=self.seconds_low * factor,
            seconds_high=self.seconds_high * factor,
            parts={name: part * factor for name, part in self.parts.items()},
            flops=self.flops * factor,
            bytes_by_axes={axes: int(sent * factor) for axes, sent in self.bytes_by_axes.items()},
            seconds_by_axes={axes: spent * factor for axes, spent in self.seconds_by_axes.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**asdict(self), "crossing": list(self.crossing)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        """Read back what `to_dict` wrote."""
        return cls(**{**data, "crossing": tuple(data["crossing"])})
