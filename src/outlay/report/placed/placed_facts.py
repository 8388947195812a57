"""What was found of a placed program, as plain data. All bytes, FLOPs and seconds are of one step."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.analysis.cost.speeds import Range


@dataclass(frozen=True)
class PartFacts:
    """One part of a graph, where it runs and what a step of it costs there.

    Attributes:
        name: the part.
        devices: the ids of its devices; of several each computes some of its rows.
        num_bytes: of its state on one of them.
        flops: floating-point operations of the traced step on one of them; integers and bits count nothing.
        bytes_accessed: what the compiled step reads and writes in memory there.
        peak: bytes that it needs there at once, by the compiler; None where that gives no figures.
        seconds: estimated, of one step; None where the hardware is not known.
        share: its part of the work of all.
    """

    name: str
    devices: tuple[int, ...]
    num_bytes: int
    flops: float
    bytes_accessed: float
    peak: int | None
    seconds: Range | None
    share: float

    @property
    def cost(self) -> float:
        """What to compare parts by: seconds, or bytes in memory where the hardware is not known."""
        return self.seconds.middle if self.seconds else self.bytes_accessed


@dataclass(frozen=True)
class SentFacts:
    """What is sent from one place to another.

    Attributes:
        part: what produces it; of an exchange of rows within a place all parts that are split there.
        port: the output.
        origin: the ids of the devices it comes from.
        target: the ids of the devices it is sent to.
        readers: the parts that read it there.
        num_bytes: that a device of the target gets in a step.
        seconds: estimated, at full speed of the links; None where the hardware is not known.
    """

    part: str
    port: str
    origin: tuple[int, ...]
    target: tuple[int, ...]
    readers: tuple[str, ...]
    num_bytes: float
    seconds: float | None

    @property
    def is_within(self) -> bool:
        """Whether it is an exchange of rows between the devices of one place."""
        return self.origin == self.target

    @property
    def bytes_in_all(self) -> float:
        """All devices of the target added up."""
        return self.num_bytes * len(self.target)


@dataclass(frozen=True)
class CachedFacts:
    """One output as it is kept for those that read it in the next step.

    Attributes:
        path: in the state, such as `cache.encoder.out`.
        shape: of the array.
        dtype: of the array.
        num_bytes: of it.
        owners: the ids of the devices where it is a part of the state.
        sent_to: the ids of the other devices that get a copy.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    owners: tuple[int, ...]
    sent_to: tuple[int, ...]
