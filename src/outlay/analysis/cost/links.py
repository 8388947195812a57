"""What a collective costs on the links of a target: the time to expect, on links that nobody else uses.

With n devices, S bytes, B bytes/s that the links reach and a seconds however little moves, a ring takes

    all-gather, reduce-scatter   w = (n-1)/n S/B          all-to-all      w = (n-1)/n S/B; on a ring of a torus, which
    all-reduce                   w = 2 (n-1)/n S/B                        others' bytes pass too, n/4 S/B
    permutation, broadcast       w = S/B

and the whole is a + w + sqrt(a w): bytes go in chunks, and the first and last of them pass links that are otherwise
idle; with chunks of the best size that takes the geometric mean of the two (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005, has the rings). Where the switches of a host add
up (NVLink SHARP), each device of an all-reduce sends S and gets S/n: w = (n+1)/n S/B, if that is faster.

Over several hosts of GPUs the ring goes through all of them, in at one network card and out at the next, and runs as
fast as its slowest part: the stages overlap. Over slices of TPUs a collective runs inside each slice and then between
them with what is left to send. Of a torus a group has the links along the dims that it spans, as in "How to Scale Your
Model" (jax-ml.github.io/scaling-book, "Sharded Matrices").

The shares that links reach are fitted to published measurements (decision 30; `benchmarks/published.py --links` lists
them). Where `outlay calibrate` measured the kind, its line through the measured times is used instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from outlay.analysis.hlo.hlo_collectives import CollectiveKind, HloCollective
from outlay.devices.compile_only import target_devices
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target

Groups = Sequence[Sequence[int]]

# What is reached of the data sheet's bytes/s. Rings of NCCL: 78 % on A100, 81 % on H200, 75 % on B200, of AMD 70 % on
# MI300X; NVLink SHARP: 69 % on H200, 60 % on B200; over the network of 4 hosts 92 to 95 %; a torus of v6e: 65 %, of
# which the chunks take some.
RING_SHARE, SWITCH_SHARE, NETWORK_SHARE, TORUS_SHARE = 0.8, 0.68, 0.97, 0.75


@dataclass(frozen=True)
class Location:
    """Where a device stands.

    Attributes:
        island: the host of a GPU, the slice of a TPU: what is joined by the fast links.
        coords: the chip's coordinates on the torus of a TPU; empty for other devices.
    """

    island: int
    coords: tuple[int, ...] = ()


def locations_of(target: Target, mesh: MeshInfo | None = None) -> tuple[Location, ...]:
    """The location of every device of a program, in the program's order.

    Args:
        target: the hardware.
        mesh: the program's mesh; one that is not of this target, or none, counts as in the order of the target, where
            neighbours stand together.
    """
    if mesh is not None and mesh.target == str(target):
        if target.hardware.kind == "tpu":
            return _on_torus(target, mesh)
        return tuple(Location(host) for host in mesh.hosts)
    if target.hardware.kind != "tpu":
        return tuple(Location(position // target.shape[-1]) for position in range(target.num_devices))
    coords = [chip for chip in np.ndindex(*target.shape) for _ in range(target.hardware.devices_per_chip)]
    return tuple(Location(island, chip) for island in range(target.num_slices) for chip in coords)


def _on_torus(target: Target, mesh: MeshInfo) -> tuple[Location, ...]:
    devices = {device.id: device for device in target_devices(target)}
    ordered = [devices[number] for number in mesh.device_ids]
    return tuple(Location(getattr(device, "slice_index", 0) or 0, tuple(device.coords)) for device in ordered)


def over_slices(
    collectives: Sequence[HloCollective], num_devices: int, locations: Sequence[Location]
) -> tuple[HloCollective, ...]:
    """The collectives of a program with groups of all its devices, as positions in its mesh.

    TPUs of several slices run the program of one, whose devices it numbers within the slice; what it sends to others
    goes to those with the same number.

    Args:
        collectives: as the program has them.
        num_devices: of the program.
        locations: where the devices of the mesh stand.
    """
    slices: dict[int, list[int]] = {}
    for position, location in enumerate(locations):
        slices.setdefault(location.island, []).append(position)
    members = tuple(slices.values())
    if len(members) < 2 or any(len(own) != num_devices for own in members):
        return tuple(collectives)

    def groups(one: HloCollective) -> tuple[tuple[int, ...], ...]:
        if not one.over_slices:
            return tuple(tuple(own[number] for number in group) for own in members for group in one.groups)
        likes = tuple(zip(*members, strict=True))
        return tuple(pair for each in likes for pair in pairwise(each)) if one.kind == "collective-permute" else likes

    return tuple(replace(one, groups=groups(one)) for one in collectives)


def payload_bytes(collective: HloCollective) -> int:
    """What `collective_seconds` calls the payload: the whole that is gathered, reduced, exchanged or passed on."""
    return max(collective.operand_bytes, collective.result_bytes)


def collective_seconds(
    kind: CollectiveKind,
    payload_bytes: float,
    groups: Groups,
    target: Target,
    *,
    locations: Sequence[Location] | None = None,
) -> float:
    """The time of one run of a collective, all its groups at once.

    Args:
        kind: such as `all-reduce`.
        payload_bytes: on one device, the larger of what goes in and what comes out: of an all-gather what is gathered,
            of a reduce-scatter what is reduced.
        groups: the devices that exchange with one another, as positions in the program; of a permutation the (source,
            target) pairs.
        target: the hardware.
        locations: where the program's devices stand; without them, in the order of the target.

    Returns:
        Seconds to expect.

    >>> from outlay.devices.target import Target
    >>> f"{collective_seconds('all-reduce', 2**30, [range(8)], Target.parse('h100:1x8')) * 1e3:.2f} ms"
    '4.40 ms'
    """
    # The compiler makes permutations in which some devices send to themselves.
    groups = [group for group in groups if len(set(group)) > 1]
    if not groups or payload_bytes <= 0:
        return 0.0
    stand = locations_of(target) if locations is None else locations
    grouped = [[stand[position] for position in group] for group in groups]
    measured = target.hardware.measured
    if measured is not None and all(len({location.island for location in group}) == 1 for group in grouped):
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
        bandwidth: bytes/s out of each that are reached.
        latency: seconds a step.
        floor: seconds of the shortest collective.
        steps: steps until each has heard from all others.
        sums: bytes/s that are reached where the switches add up; 0 where they do not.
        detour: on a torus, how often a byte of an all-to-all passes a link, over all dims that it must cross.
    """

    num: int
    bandwidth: float
    latency: float
    floor: float
    steps: int
    sums: float = 0.0
    detour: float = 0.0


def _group_seconds(kind: CollectiveKind, payload: float, group: Sequence[Location], target: Target) -> float:
    hardware = target.hardware
    islands: dict[int, list[Location]] = {}
    for location in group:
        islands.setdefault(location.island, []).append(location)
    members = max(islands.values(), key=len)
    inside = _inside(members, target)
    if len(islands) == 1:
        return _on(inside, kind, payload)
    across = _Links(
        num=len(islands),
        bandwidth=hardware.scale_out_bandwidth * NETWORK_SHARE,
        latency=hardware.scale_out_latency,
        floor=hardware.scale_out_floor,
        steps=len(islands) - 1,
    )
    if kind == "collective-permute":  # two devices, which wait for nobody else
        return _on(replace(across, floor=hardware.link_floor), kind, payload)
    if inside.num == 1:
        return _on(across, kind, payload)
    if kind == "all-to-all":
        # What is for other islands leaves over the network while the rest is exchanged inside.
        return max(_on(inside, kind, payload * inside.num / len(group)), _on(across, kind, payload))
    if hardware.kind != "gpu":
        share = payload / inside.num
        if kind == "all-reduce":
            return 2 * _on(inside, "reduce-scatter", payload) + _on(across, "all-reduce", share)
        return _on(inside, kind, payload) + _on(across, kind, payload if kind == "collective-broadcast" else share)
    steps = inside.steps * across.num + across.steps
    through_all = replace(
        across,
        num=len(group),
        bandwidth=min(inside.bandwidth, across.bandwidth * inside.num),
        # Of a step on average: most are inside a host.
        latency=(inside.latency * inside.steps * across.num + across.latency * across.steps) / steps,
        steps=steps,
    )
    return _on(through_all, kind, payload)


def _on(links: _Links, kind: CollectiveKind, payload: float) -> float:
    n, seconds = links.num, payload / links.bandwidth
    if n < 2:
        return 0.0
    doublings, around = math.ceil(math.log2(n)), (n - 1) / n * seconds
    if kind == "all-reduce":
        steps, moving = 2 * min(links.steps, doublings), 2 * around
        if links.sums:
            moving = min(moving, (n + 1) / n * payload / links.sums)
    elif kind == "collective-permute":
        steps, moving = 1, seconds
    elif kind == "collective-broadcast":
        steps, moving = doublings, seconds
    elif kind == "all-to-all":
        steps, moving = links.steps, max(around, links.detour * seconds)
    else:
        steps, moving = links.steps, around
    waiting = max(links.floor, steps * links.latency)
    return waiting + moving + math.sqrt(waiting * moving)


def _inside(members: Sequence[Location], target: Target) -> _Links:
    """The links of devices that stand together: of a GPU all its links, of a TPU those along the torus dims used."""
    hardware, num = target.hardware, len(members)
    links = _Links(num, hardware.intra_host_link_bandwidth, hardware.link_latency, hardware.link_floor, num - 1)
    if not (hardware.torus_dims and members[0].coords):
        each = hardware.intra_host_link_bandwidth
        if hardware.links_by_pair and hardware.devices_per_host:
            each *= (num - 1) / (hardware.devices_per_host - 1)
        from_here = hardware.switch_reduces_from
        sums = each * SWITCH_SHARE if from_here is not None and num >= from_here else 0.0
        return replace(links, bandwidth=each * RING_SHARE, sums=sums)
    sizes = [len({location.coords[dim] for location in members}) for dim in range(len(members[0].coords))]
    used = [dim for dim, size in enumerate(sizes) if size > 1]
    # Devices of one chip, or one that sends to itself, go nowhere.
    share = sum(_torus_share(sizes[dim], target.shape[dim], hardware.torus_dims) for dim in used) or hardware.torus_dims
    return replace(
        links,
        bandwidth=hardware.intra_host_link_bandwidth * share / hardware.torus_dims * TORUS_SHARE,
        steps=max(1, sum(sizes) - len(sizes)),
        detour=len(used) * max(sizes) / 4,
    )


def _torus_share(size: int, whole: int, torus_dims: int) -> float:
    """Of the two links along a torus dim, the share that a group can use: a part of the ring has an end, and uses one.

    A dim wraps around where the slice spans it all: 16 chips of a two-dimensional torus, 4 of a three-dimensional one.
    """
    wraps = size == whole and whole % (16 if torus_dims == 2 else 4) == 0
    return 1.0 if wraps else 0.5
