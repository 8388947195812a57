"""What each part of a placed program costs, and what the parts send to one another, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlay.analysis.cost.estimate import Range
from outlay.analysis.findings.finding import Finding
from outlay.core.one_line import OneLine
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.render.report import fields_as_json

_ALIKE = 0.005
"""Shares of the work that differ by less count as equal."""


def bound_of(shares: Mapping[str, float], best_gain: float, whole: str) -> str:
    """Say what the largest part means for every placement.

    Args:
        shares: the share of each part.
        best_gain: the largest possible speed-up of placing whole parts.
        whole: what the shares are of.
    """
    share = max(shares.values())
    names = [name for name in shares if shares[name] > share - _ALIKE]
    takes = f"{names[0]} takes" if len(names) == 1 else f"{' and '.join(names)} each take"
    return (
        f"{takes} {share:.0%} of the {whole}, so no placement part by part can be faster than {best_gain:.1f}x one "
        "device (sum / max)"
    )


@dataclass(frozen=True)
class PartFacts(OneLine):
    """One part of a graph, where it runs and what a step of it costs there.

    Attributes:
        name: the part.
        devices: the ids of its devices; if there are several, each computes some of its rows.
        num_bytes: the number of bytes of its state on one of them.
        flops: floating-point operations of the traced step on one of them; integer and bit operations do not count.
        bytes_accessed: what the compiled step reads and writes in memory there.
        peak: bytes that it needs there at once, by the compiler; None if that gives no figures.
        seconds: estimated per step; None if the hardware is not known.
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
        """The measure by which parts are compared: seconds, or bytes in memory if the hardware is not known."""
        return self.seconds.middle if self.seconds else self.bytes_accessed


@dataclass(frozen=True)
class SentFacts(OneLine):
    """What is sent from one group of devices to another.

    Attributes:
        part: the part that produces it; for an exchange of rows within a group, all parts that are split there.
        port: the output.
        origin: the ids of the devices that it comes from.
        target: the ids of the devices that it is sent to.
        readers: the parts that read it there.
        num_bytes: bytes that a device of the target receives per step.
        seconds: estimated, at full speed of the links; None if the hardware is not known.
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
        """Whether it is an exchange of rows between the devices of one group."""
        return self.origin == self.target

    @property
    def bytes_in_all(self) -> float:
        """Bytes for all devices of the target together."""
        return self.num_bytes * len(self.target)


@dataclass(frozen=True)
class CachedFacts(OneLine):
    """One output as it is cached for the parts that read it in the next step.

    Attributes:
        path: in the state, such as `cache.encoder.out`.
        shape: the shape of the array.
        dtype: the dtype of the array.
        num_bytes: the number of bytes of the array.
        owners: the ids of the devices where it is part of the state.
        sent_to: the ids of the other devices that get a copy.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    owners: tuple[int, ...]
    sent_to: tuple[int, ...]


@dataclass(frozen=True)
class PlacedExplanation(OneLine):
    """What each part of a placed program costs, and what the parts send: `outlay.explain(program).by_parts`.

    All bytes, FLOPs and seconds are per step.

    Attributes:
        name: what was explained.
        target: the hardware that times are for; None if it is not known.
        mesh: the mesh.
        parts: the parts, in the order of the graph.
        sent: what leaves a device, most bytes first.
        cached: the exchange cache by path.
        num_steps_at_once: steps that run between two exchanges.
        findings: what costs more than it must.
        incomplete: what could not be counted, in words.
        notes: what to know when reading it, in words.
        seconds: how long compiling and explaining took.
    """

    name: str
    target: Target | None
    mesh: MeshInfo
    parts: tuple[PartFacts, ...]
    sent: tuple[SentFacts, ...]
    cached: tuple[CachedFacts, ...]
    num_steps_at_once: int
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    def __getitem__(self, name: str) -> PartFacts:
        """Return a part by its name."""
        return next(part for part in self.parts if part.name == name)

    @property
    def work(self) -> float:
        """The cost of all parts, one after the other: seconds, or bytes if the hardware is not known."""
        return sum(part.cost * len(part.devices) for part in self.parts)

    @property
    def work_by_device(self) -> dict[int, float]:
        """The cost of the parts on each device, by id."""
        work = dict.fromkeys(self.mesh.device_ids, 0.0)
        for part in self.parts:
            for device in part.devices:
                work[device] += part.cost
        return work

    @property
    def bytes_by_device(self) -> dict[int, int]:
        """What each device holds of the state, including the cache, by id."""
        num_bytes = dict.fromkeys(self.mesh.device_ids, 0)
        for one in (*self.parts, *self.cached):
            for device in one.devices if isinstance(one, PartFacts) else one.owners:
                num_bytes[device] += one.num_bytes
        return num_bytes

    @property
    def best_gain(self) -> float:
        """The largest possible speed-up of placing whole parts: all work over the largest part."""
        largest = max((part.cost * len(part.devices) for part in self.parts), default=0.0)
        return self.work / largest if largest else 1.0

    @property
    def bound(self) -> str:
        """The largest part, and what it means for every placement, in words."""
        return bound_of({part.name: part.share for part in self.parts}, self.best_gain, "work")

    @property
    def gain(self) -> float:
        """The largest possible speed-up of this placement, without exchanges: all work over the busiest device."""
        busiest = max(self.work_by_device.values(), default=0.0)
        return self.work / busiest if busiest else 1.0

    @property
    def bytes_per_step(self) -> float:
        """The bytes sent per step, by all devices together."""
        return sum(one.bytes_in_all for one in self.sent)

    @property
    def most_sent(self) -> float:
        """The bytes per step of the device that sends most."""
        sent: dict[int, float] = {}
        for one in self.sent:
            # If several devices hold what others read, the first one sends it.
            for device in one.origin if one.is_within else one.origin[:1]:
                sent[device] = sent.get(device, 0.0) + (one.num_bytes if one.is_within else one.bytes_in_all)
        return max(sent.values(), default=0.0)

    @property
    def exchange_seconds(self) -> float | None:
        """The estimated time of the device that waits longest; None if the hardware is not known."""
        if self.target is None:
            return None
        waits: dict[int, float] = {}
        for one in self.sent:
            for device in one.target:
                waits[device] = waits.get(device, 0.0) + (one.seconds or 0.0)
        return max(waits.values(), default=0.0)

    @property
    def peak(self) -> int | None:
        """The most that a device needs at once: its state, and the temporaries of its largest part."""
        if any(part.peak is None for part in self.parts):
            return None
        held = self.bytes_by_device
        more = dict.fromkeys(held, 0)
        for part in self.parts:
            for device in part.devices:
                more[device] = max(more[device], (part.peak or 0) - part.num_bytes)
        return max((held[device] + more[device] for device in held), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self),
            "target": str(self.target) if self.target else None,
            "best_gain": self.best_gain,
            "gain": self.gain,
            "bytes_per_step": self.bytes_per_step,
            "exchange_seconds": self.exchange_seconds,
            "peak": self.peak,
            "sent": [{**fields_as_json(one), "bytes_in_all": one.bytes_in_all} for one in self.sent],
        }
