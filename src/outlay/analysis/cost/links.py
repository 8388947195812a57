"""Estimate the time of a collective on the links of a target, assuming that nothing else uses them.

With n devices, S bytes, an effective bandwidth of B bytes/s and a latency of a seconds, a ring takes

    all-gather, reduce-scatter   w = (n-1)/n S/B          all-to-all      w = (n-1)/n S/B; on a ring of a torus, which
    all-reduce                   w = 2 (n-1)/n S/B                        others' bytes pass too, n/4 S/B
    permutation, broadcast       w = S/B

and the total is a + w + sqrt(a w): data moves in chunks, and while the first and the last chunk pass, other links are
idle; with the best chunk size that costs the geometric mean of the two (Thakur, Rabenseifner and Gropp, "Optimization
of Collective Communication Operations in MPICH", 2005, describes the rings). If the switches of a host reduce (NVLink
SHARP), each device of an all-reduce sends S and receives S/n: w = (n+1)/n S/B, if that is faster.

Across several GPU hosts, one ring passes through all of them, in at one network card and out at the next, and runs as
fast as its slowest link, since the stages overlap. Across TPU slices, a collective runs inside each slice and then
between slices with what is left to send. On a torus, a group uses the links along the dims that it spans, as in "How to
Scale Your Model" (jax-ml.github.io/scaling-book, "Sharded Matrices").

The fractions of peak bandwidth are fitted to published measurements (decision 30; `benchmarks/published.py --links`
lists them). If `outlay calibrate` measured a kind of collective, the fitted line of its times is used instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from outlay.analysis.hlo.hlo_collectives import CollectiveKind, HloCollective
from outlay.core.one_line import OneLine
from outlay.devices.compile_only import target_devices
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target

Groups = Sequence[Sequence[int]]

# The reached fraction of the data sheet's bytes/s. NCCL rings: 78 % on A100, 81 % on H200, 75 % on B200; AMD: 70 % on
# MI300X; NVLink SHARP: 69 % on H200, 60 % on B200; the network of 4 hosts: 92 to 95 %; a v6e torus: 65 %, which
# includes the cost of chunking.
RING_SHARE, SWITCH_SHARE, NETWORK_SHARE, TORUS_SHARE = 0.8, 0.68, 0.97, 0.75


@dataclass(frozen=True)
class Location(OneLine):
    """The location of a device in the network.

    Attributes:
        island: the host of a GPU or the slice of a TPU: the devices connected by fast links.
        coords: the chip's coordinates on the TPU torus; empty for other devices.
    """

    island: int
    coords: tuple[int, ...] = ()


def locations_of(target: Target, mesh: MeshInfo | None = None) -> tuple[Location, ...]:
    """Locate every device of a program, in the program's order.

    Args:
        target: the hardware.
        mesh: the program's mesh. Without a mesh of this target, devices are taken in the target's order, with
            neighbours next to each other.
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
    """Expand the groups of a program's collectives to all devices of its mesh.

    On multi-slice TPUs, the program is that of one slice, with devices numbered within the slice; transfers between
    slices go to the device with the same number.

    Args:
        collectives: the collectives of the program.
        num_devices: the number of devices of the program.
        locations: the locations of the mesh's devices.
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
    """Return the payload for `collective_seconds`: all bytes that are gathered, reduced, exchanged or passed on."""
    return max(collective.operand_bytes, collective.result_bytes)


def collective_seconds(
    kind: CollectiveKind,
    payload_bytes: float,
    groups: Groups,
    target: Target,
    *,
    locations: Sequence[Location] | None = None,
) -> float:
    """Estimate the time of one run of a collective, with all its groups running at once.

    Args:
        kind: the kind, such as `all-reduce`.
        payload_bytes: the larger of input and output on one device: the gathered array of an all-gather, the unreduced
            array of a reduce-scatter.
        groups: the groups of devices, as positions in the program; for a permutation, the (source, target) pairs.
        target: the hardware.
        locations: the locations of the program's devices; by default in the target's order.

    Returns:
        The expected seconds.

    >>> from outlay.devices.target import Target
    >>> f"{collective_seconds('all-reduce', 2**30, [range(8)], Target.parse('h100:1x8')) * 1e3:.2f} ms"
    '4.40 ms'
    """
    groups = _that_move(groups)
    if not groups or payload_bytes <= 0:
        return 0.0
    if (seconds := measured_seconds(kind, payload_bytes, groups, target, locations=locations)) is not None:
        return seconds
    return max(_reach_seconds(kind, payload_bytes, reach, target) for reach in reaches(groups, target, locations))


def _that_move(groups: Groups) -> list[Sequence[int]]:
    """Leave out devices that send to themselves, as in some permutations of the compiler: they use no link."""
    return [group for group in groups if len(set(group)) > 1]


def measured_seconds(
    kind: CollectiveKind,
    payload_bytes: float,
    groups: Groups,
    target: Target,
    *,
    locations: Sequence[Location] | None = None,
) -> float | None:
    """Return the time of a collective by what `outlay calibrate` measured; None if it did not, or between islands."""
    measured, groups = target.hardware.measured, _that_move(groups)
    stand = locations_of(target) if locations is None else locations
    if measured is None or any(len({stand[position].island for position in group}) > 1 for group in groups):
        return None
    seconds = measured.collective_seconds(kind, payload_bytes, _together(groups)) if groups else 0.0
    return None if seconds is None else seconds * crowding(target)


def _together(groups: Groups) -> int:
    """Count the devices that wait for each other; pairs of a permutation that share a device form one group."""
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
    """Return how much slower a simulated device is than when calibrated, since all of them share this machine."""
    measured = target.hardware.measured
    if measured is None or target.hardware.kind != "cpu":
        return 1.0
    return target.num_devices / measured.num_devices


@dataclass(frozen=True)
class Links:
    """The links between some devices.

    Attributes:
        num: the number of devices.
        bandwidth: effective outgoing bytes/s of each device.
        latency: seconds per step of a collective.
        floor: seconds of the shortest collective.
        steps: the steps until every device has data from all others.
        sums: effective bytes/s if the switches reduce; 0 if they do not.
        detour: on a torus, the mean number of links that a byte of an all-to-all passes, over all dims.
    """

    num: int
    bandwidth: float
    latency: float
    floor: float
    steps: int
    sums: float = 0.0
    detour: float = 0.0


@dataclass(frozen=True)
class Reach:
    """How far a group of devices reaches, which is all that its time depends on.

    Attributes:
        size: the number of devices.
        num_islands: the number of islands (hosts of GPUs, slices of TPUs) that they belong to.
        inside: the links inside the island with most of them.
    """

    size: int
    num_islands: int
    inside: Links


def reaches(groups: Groups, target: Target, locations: Sequence[Location] | None = None) -> tuple[Reach, ...]:
    """Return the different reaches of groups of devices, for the arguments of `collective_seconds`."""
    stand = locations_of(target) if locations is None else locations
    grouped = ([stand[position] for position in group] for group in _that_move(groups))
    return tuple(dict.fromkeys(_reach(group, target) for group in grouped))


def _reach(group: Sequence[Location], target: Target) -> Reach:
    islands: dict[int, list[Location]] = {}
    for location in group:
        islands.setdefault(location.island, []).append(location)
    return Reach(len(group), len(islands), _inside(max(islands.values(), key=len), target))


def _reach_seconds(kind: CollectiveKind, payload: float, reach: Reach, target: Target) -> float:
    hardware, inside = target.hardware, reach.inside
    if reach.num_islands == 1:
        return _on(inside, kind, payload)
    across = Links(
        num=reach.num_islands,
        bandwidth=hardware.scale_out_bandwidth * NETWORK_SHARE,
        latency=hardware.scale_out_latency,
        floor=hardware.scale_out_floor,
        steps=reach.num_islands - 1,
    )
    if kind == "collective-permute":  # two devices send directly, without a ring
        return _on(replace(across, floor=hardware.link_floor), kind, payload)
    if inside.num == 1:
        return _on(across, kind, payload)
    if kind == "all-to-all":
        # Data for other islands leaves over the network while the rest is exchanged inside; the slower one decides.
        return max(_on(inside, kind, payload * inside.num / reach.size), _on(across, kind, payload))
    if hardware.kind != "gpu":
        share = payload / inside.num
        if kind == "all-reduce":
            return 2 * _on(inside, "reduce-scatter", payload) + _on(across, "all-reduce", share)
        return _on(inside, kind, payload) + _on(across, kind, payload if kind == "collective-broadcast" else share)
    # One ring through all hosts: NCCL keeps all stages busy at once. Estimating a reduce-scatter inside, a sum across
    # and a gather inside one after the other was 45 % too slow on four hosts of H200s (decision 30).
    steps = inside.steps * across.num + across.steps
    through_all = replace(
        across,
        num=reach.size,
        bandwidth=min(inside.bandwidth, across.bandwidth * inside.num),
        # The mean over the steps of the ring: most of them stay inside a host.
        latency=(inside.latency * inside.steps * across.num + across.latency * across.steps) / steps,
        steps=steps,
    )
    return _on(through_all, kind, payload)


def _on(links: Links, kind: CollectiveKind, payload: float) -> float:
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
    # The root is the time to fill and drain the ring with chunks; its factor of 1 is fitted (decision 30).
    waiting = max(links.floor, steps * links.latency)
    return waiting + moving + math.sqrt(waiting * moving)


def _inside(members: Sequence[Location], target: Target) -> Links:
    """Return the links of devices in one island: all links of a GPU, those along the spanned torus dims of a TPU."""
    hardware, num = target.hardware, len(members)
    links = Links(num, hardware.intra_host_link_bandwidth, hardware.link_latency, hardware.link_floor, num - 1)
    if not (hardware.torus_dims and members[0].coords):
        each = hardware.intra_host_link_bandwidth
        if hardware.links_by_pair and hardware.devices_per_host:
            each *= (num - 1) / (hardware.devices_per_host - 1)
        from_here = hardware.switch_reduces_from
        sums = each * SWITCH_SHARE if from_here is not None and num >= from_here else 0.0
        return replace(links, bandwidth=each * RING_SHARE, sums=sums)
    sizes = [len({location.coords[dim] for location in members}) for dim in range(len(members[0].coords))]
    used = [dim for dim, size in enumerate(sizes) if size > 1]
    # Devices of one chip, or a device that sends to itself, use no link.
    share = sum(_torus_share(sizes[dim], target.shape[dim], hardware.torus_dims) for dim in used) or hardware.torus_dims
    return replace(
        links,
        bandwidth=hardware.intra_host_link_bandwidth * share / hardware.torus_dims * TORUS_SHARE,
        steps=max(1, sum(sizes) - len(sizes)),
        detour=len(used) * max(sizes) / 4,
    )


def _torus_share(size: int, whole: int, torus_dims: int) -> float:
    """Return the fraction of the two links along a torus dim that a group can use; a partial ring uses only one.

    A dim wraps around only if the slice spans all of it: 16 chips on a 2-D torus, 4 on a 3-D torus.
    """
    wraps = size == whole and whole % (16 if torus_dims == 2 else 4) == 0
    return 1.0 if wraps else 0.5
