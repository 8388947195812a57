"""What a collective costs on the links of a target.

Inside a host, or a TPU's slice, a ring (or a tree, where that is faster) over the fast links; across, first inside and
then over the network with what is left to send, as NCCL and XLA do. The formulas are those of Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), and, for a torus, of "How to Scale Your
Model" (jax-ml.github.io/scaling-book, "Sharded Matrices"). With n devices, S bytes, B bytes/s and a seconds a step:

    all-gather, reduce-scatter   (n-1) a + (n-1)/n S/B
    all-reduce, ring             2 (n-1) a + 2 (n-1)/n S/B
    all-reduce, tree             2 log2(n) a + 2 S/B
    all-to-all                   (n-1) a + (n-1)/n S/B; on a ring of a torus, which others' bytes pass too, n/4 S/B
    permutation                  a + S/B
    broadcast                    log2(n) a + S/B

Where `outlay calibrate` measured the kind, its line through the measured times is used instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outlay.meshes.target import Target
from outlay.report.estimate.places import Place, places_of
from outlay.report.hlo.collective import CollectiveKind, HloCollective

Groups = Sequence[Sequence[int]]


def payload_bytes(collective: HloCollective) -> int:
    """What `collective_seconds` calls the payload: the whole that is gathered, reduced, exchanged or passed on."""
    return max(collective.operand_bytes, collective.result_bytes)


def collective_seconds(
    kind: CollectiveKind,
    payload_bytes: float,
    groups: Groups,
    target: Target,
    *,
    places: Sequence[Place] | None = None,
) -> float:
    """The time of one run of a collective, all its groups at once.

    Args:
        kind: such as `all-reduce`.
        payload_bytes: on one device, the larger of what goes in and what comes out: of an all-gather what is gathered,
            of a reduce-scatter what is reduced.
        groups: the devices that exchange with one another, as positions in the program; of a permutation the (source,
            target) pairs.
        target: the hardware.
        places: where the program's devices stand; without them, in the order of the target.

    Returns:
        Seconds, at the full speed of the links.

    >>> from outlay.meshes.target import Target
    >>> f"{collective_seconds('all-reduce', 2**30, [range(8)], Target.parse('h100:1x8')) * 1e3:.2f} ms"
    '4.20 ms'
    """
    if max((len(group) for group in groups), default=1) < 2 or payload_bytes <= 0:
        return 0.0
    stand = places_of(target) if places is None else places
    grouped = [[stand[position] for position in group] for group in groups]
    measured = target.hardware.measured
    if measured is not None and all(len({place.island for place in group}) == 1 for group in grouped):
        seconds = measured.collective_seconds(kind, payload_bytes, _together(groups))
        if seconds is not None:
            return seconds * crowding(target)
    return max(_group_seconds(kind, payload_bytes, group, target) for group in grouped)


def _together(groups: Groups) -> int:
    """How many devices wait for one another; the pairs of a permutation hang together where they share a device."""
    leader: dict[int, int] = {}

    def first_of(device: int) -> int:
        while leader.setdefault(device, device) != device:
            device = leader[device]
        return device

    for first, *others in groups:
        for other in others:
            leader[first_of(other)] = first_of(first)
    return max(Counter(map(first_of, list(leader))).values())


def crowding(target: Target) -> float:
    """How much slower a simulated device is than when it was measured: all of them share this machine."""
    measured = target.hardware.measured
    if measured is None or target.hardware.kind != "cpu":
        return 1.0
    return target.num_devices / measured.num_devices


@dataclass(frozen=True)
class _Links:
    """What joins some devices.

    Attributes:
        num: the devices.
        bandwidth: bytes/s out of each.
        latency: seconds a step.
        steps: steps until each has heard from all others.
        detour: on a torus, how often a byte of an all-to-all passes a link, over all dims that it must cross.
    """

    num: int
    bandwidth: float
    latency: float
    steps: int
    detour: float = 0.0


def _group_seconds(kind: CollectiveKind, payload: float, group: Sequence[Place], target: Target) -> float:
    islands: dict[int, list[Place]] = {}
    for place in group:
        islands.setdefault(place.island, []).append(place)
    inside = _inside(max(islands.values(), key=len), target)
    hardware = target.hardware
    across = _Links(len(islands), hardware.scale_out_bandwidth, hardware.scale_out_latency, len(islands) - 1)
    if across.num == 1:
        return _on(inside, kind, payload)
    if inside.num == 1 or kind in ("collective-permute", "collective-broadcast"):
        return _on(across, kind, payload)
    share = payload / inside.num
    if kind == "all-reduce":
        return 2 * _on(inside, "reduce-scatter", payload) + _on(across, "all-reduce", share)
    if kind == "all-to-all":
        # What is for other islands leaves over the network while the rest is exchanged inside.
        return max(_on(inside, kind, payload * inside.num / len(group)), _on(across, kind, payload))
    return _on(inside, kind, payload) + _on(across, kind, share)


def _on(links: _Links, kind: CollectiveKind, payload: float) -> float:
    n, seconds = links.num, payload / links.bandwidth
    if n < 2:
        return 0.0
    ring = links.steps * links.latency + (n - 1) / n * seconds
    if kind == "all-reduce":
        return min(2 * ring, 2 * math.ceil(math.log2(n)) * links.latency + 2 * seconds)
    if kind == "collective-permute":
        return links.latency + seconds
    if kind == "collective-broadcast":
        return math.ceil(math.log2(n)) * links.latency + seconds
    if kind == "all-to-all":
        return links.steps * links.latency + max((n - 1) / n, links.detour) * seconds
    return ring


def _inside(members: Sequence[Place], target: Target) -> _Links:
    """The links of devices that stand together: of a GPU all its links, of a TPU those along the torus dims used."""
    hardware = target.hardware
    if not (hardware.torus_dims and members[0].coords):
        return _Links(len(members), hardware.intra_host_link_bandwidth, hardware.link_latency, len(members) - 1)
    sizes = [len({place.coords[dim] for place in members}) for dim in range(len(members[0].coords))]
    used = [dim for dim, size in enumerate(sizes) if size > 1]
    share = sum(_torus_share(sizes[dim], target.shape[dim], hardware.torus_dims) for dim in used)
    bandwidth = hardware.intra_host_link_bandwidth * share / hardware.torus_dims
    detour = len(used) * max(sizes) / 4
    steps = sum(sizes) - len(sizes)
    return _Links(len(members), bandwidth, hardware.link_latency, steps, detour)


def _torus_share(size: int, whole: int, torus_dims: int) -> float:
    """Of the two links along a torus dim, the share that a group can use: a part of the ring has an end, and uses one.

    A dim wraps around where the slice spans it all: 16 chips of a two-dimensional torus, 4 of a three-dimensional one.
    """
    wraps = size == whole and whole % (16 if torus_dims == 2 else 4) == 0
    return 1.0 if wraps else 0.5
