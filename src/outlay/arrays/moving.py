"""Move arrays between any shardings of this process's devices, in pieces that go straight from device to device.

Where the devices of both shardings differ and a shard does not fit as it is, `jax.device_put` brings the array whole to
the host.
Here each device gets only what it lacks, from a device that holds it.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from outlay.arrays.sharding_blocks import MOST_BYTES, Bounds, blocks, of_index, shape_of
from outlay.arrays.shardings import given_arrays, target_shardings
from outlay.core.array_leaves import merge_objects, split_objects
from outlay.core.error_types import PlaceError, Problem
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted, format_bytes
from outlay.core.sizes import num_bytes
from outlay.devices.hardware import Hardware
from outlay.devices.mesh_info import host_of
from outlay.layout.plan import Plan
from outlay.render.page import Column, Line, Page, Row, Table
from outlay.render.report import Report


@dataclass(frozen=True)
class MovedPiece(OneLine):
    """A part of an array that one device takes from another.

    Attributes:
        path: the leaf.
        source: the device that holds it.
        device: the device that needs it.
        bounds: start and stop in each dim of the array.
        num_bytes: its size.
    """

    path: str
    source: jax.Device
    device: jax.Device
    bounds: Bounds
    num_bytes: int

    @property
    def is_sent(self) -> bool:
        """Whether it leaves its device."""
        return self.source != self.device

    @property
    def crosses_hosts(self) -> bool:
        """Whether it leaves its host."""
        return host_of(self.source) != host_of(self.device)


@dataclass(frozen=True)
class PlannedMove(Report):
    """What moving a tree sends from device to device, before anything is sent.

    Attributes:
        pieces: every part of every leaf, of those that stay where they are too.
    """

    pieces: tuple[MovedPiece, ...]

    @property
    def bytes_moved(self) -> int:
        """Bytes that leave a device: what all devices need and do not hold yet, and no more."""
        return sum(piece.num_bytes for piece in self.pieces if piece.is_sent)

    @property
    def bytes_across_hosts(self) -> int:
        """Bytes among them that leave a host."""
        return sum(piece.num_bytes for piece in self.pieces if piece.crosses_hosts)

    def seconds(self, hardware: Hardware) -> float:
        """Return the seconds that it takes at least: those of the device that sends or receives the longest.

        Args:
            hardware: the devices, as `outlay.devices.Target.parse("h100:2x8").hardware`.
        """
        busy: dict[tuple[str, int], float] = collections.defaultdict(float)
        for piece in self.pieces:
            if piece.is_sent:
                crosses = piece.crosses_hosts
                speed = hardware.scale_out_bandwidth if crosses else hardware.intra_host_link_bandwidth
                busy["sends", piece.source.id] += piece.num_bytes / speed
                busy["receives", piece.device.id] += piece.num_bytes / speed
        return max(busy.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: bytes by leaf, and by pairs of devices."""
        between: collections.Counter[tuple[int, int]] = collections.Counter()
        for piece in self.pieces:
            if piece.is_sent:
                between[piece.source.id, piece.device.id] += piece.num_bytes
        return {
            "bytes_moved": self.bytes_moved,
            "bytes_across_hosts": self.bytes_across_hosts,
            "leaves": {path: sum(p.num_bytes for p in some if p.is_sent) for path, some in self._by_leaf()},
            "between": [[source, device, size] for (source, device), size in sorted(between.items())],
        }

    def _by_leaf(self) -> Iterator[tuple[str, list[MovedPiece]]]:
        return ((path, list(some)) for path, some in itertools.groupby(self.pieces, lambda piece: piece.path))

    def _page(self) -> Page:
        rows = []
        for path, some in self._by_leaf():
            sent = [piece for piece in some if piece.is_sent]
            size, across = (sum(p.num_bytes for p in those) for those in (sent, [p for p in sent if p.crosses_hosts]))
            rows.append(Row([path, format_bytes(size), format_bytes(across), str(len(sent))]))
        columns = [Column("leaf", "path"), *(Column(name, "number") for name in ("moved", "across hosts", "pieces"))]
        title = f"{format_bytes(self.bytes_moved)} move from device to device"
        return Page(
            title, [Line(f"{format_bytes(self.bytes_across_hosts)} of them across hosts"), Table(columns, rows)]
        )


def plan_move(tree: Any, to: Plan | Sharding, mesh: Mesh | None = None) -> PlannedMove:
    """Return what `move` would send, without sending it.

    Args:
        tree: arrays, or `jax.ShapeDtypeStruct` with a sharding, of devices that need not be here.
        to: where each leaf is to live.
        mesh: the mesh that the plan was made for; a sharding has its own.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: leaves live nowhere yet, or with other processes; every leaf is listed.

    Example:
        >>> mesh = outlay.mesh(x=8)
        >>> rows, columns = (jax.NamedSharding(mesh, spec) for spec in (P("x"), P(None, "x")))
        >>> planned = outlay.arrays.plan_move({"w": jax.ShapeDtypeStruct((8, 8), "float32", sharding=rows)}, columns)
        >>> planned.bytes_moved  # each device has one of the 8 values that it needs
        224
        >>> planned.seconds(outlay.devices.Target.parse("h100:1x8").hardware) < 1e-6
        True
    """
    tree = flat_nodes(split_objects(tree)[1])
    targets = target_shardings(tree, to, mesh, is_run=False)
    _check_here(tree)
    sent: collections.Counter[jax.Device] = collections.Counter()
    pieces = [
        piece
        for (path, leaf), target in zip(flatten_paths(tree)[0], jax.tree.leaves(targets), strict=True)
        for piece in _pieces(path, leaf, target, sent)
    ]
    return PlannedMove(tuple(pieces))


def move(tree: Any, to: Plan | Sharding, mesh: Mesh | None = None) -> Any:
    """Move arrays to another plan or sharding, also of other devices: from training to sampling, from stages to FSDP.

    Each device gets what it lacks from one that holds it, a slab at a time: no array is whole on the host or on a
    device that does not need it, and no more bytes travel than `plan_move` says. A shard that stays where it is, is not
    copied: when a program donates the result, the original is gone too.

    On the same devices `outlay.arrays.reshard` may be faster, since one program exchanges everything at once, and it
    works across processes. Between jobs a checkpoint carries a state from one mesh to another.

    Args:
        tree: JAX arrays; for a plan, with the paths, shapes and dtypes that it was made for.
        to: where each leaf is to live.
        mesh: the mesh that the plan was made for; a sharding has its own.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: leaves are no JAX arrays, were donated, live with other processes, or shapes do not fit; every leaf
            is listed.
        ProgramError: the mesh has compile-only devices.

    Example:
        >>> left, right = (outlay.mesh(x=4, devices=jax.devices()[some]) for some in (slice(4), slice(4, 8)))
        >>> x = outlay.arrays.put(np.arange(8.0), jax.NamedSharding(left, P("x")))
        >>> moved = outlay.arrays.move(x, jax.NamedSharding(right, P("x")))
        >>> sorted(device.id for device in moved.devices()), moved.tolist() == x.tolist()
        ([4, 5, 6, 7], True)
    """
    objects, tree = split_objects(tree)
    tree = given_arrays(flat_nodes(tree))
    targets = target_shardings(tree, to, mesh)
    _check_here(tree)
    leaves, structure = jax.tree.flatten(tree)
    sent: collections.Counter[jax.Device] = collections.Counter()
    moved = [_moved(leaf, target, sent) for leaf, target in zip(leaves, structure.flatten_up_to(targets), strict=True)]
    return merge_objects(objects, users_nodes(structure.unflatten(moved)))


def _check_here(tree: Any) -> None:
    """Raise if leaves have no place that this process reaches."""
    problems = []
    for path, leaf in flatten_paths(tree)[0]:
        if getattr(leaf, "sharding", None) is None:
            what, fix = f"a {type(leaf).__name__} lives on no device", "outlay.arrays.put places it"
            problems.append(Problem("no array of JAX", path, what, fix))
        elif isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            fix = "outlay.arrays.reshard on the same devices, or a checkpoint that the others restore"
            problems.append(Problem("elsewhere", path, "other processes hold a part of it", fix))
    if problems:
        raise PlaceError(f"{counted(len(problems), 'leaf', 'leaves')} cannot be moved:", problems)


def _pieces(path: str, leaf: Any, target: Sharding, sent: collections.Counter[jax.Device]) -> Iterator[MovedPiece]:
    """Yield the parts of which each device's new shard consists.

    Args:
        path: the leaf's.
        leaf: its shape, dtype and old sharding.
        target: its new sharding.
        sent: bytes that each device sends already, so that the holders of a copy share the work.
    """
    held = blocks(leaf.shape, leaf.sharding)
    for needed, devices in blocks(leaf.shape, target).items():
        parts = [(part, holders) for block, holders in held.items() if (part := _common(block, needed)) is not None]
        for device, (part, holders) in itertools.product(devices, parts):
            source = min(
                holders, key=lambda holder: (holder != device, host_of(holder) != host_of(device), sent[holder])
            )
            size = num_bytes(shape_of(part), leaf.dtype)
            sent[source] += size if source != device else 0
            yield MovedPiece(path, source, device, part, size)


def _common(one: Bounds, other: Bounds) -> Bounds | None:
    """Return what two blocks have in common; None if that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) or one == other else None


def _moved(leaf: jax.Array, target: Sharding, sent: collections.Counter[jax.Device]) -> jax.Array:
    """Assemble each new shard of a leaf on its device."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _moved(jax.random.key_data(leaf), target, sent)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    old = {shard.device: (shard.data, of_index(shard.index, leaf.shape)) for shard in leaf.addressable_shards}
    parts: dict[jax.Device, list[MovedPiece]] = collections.defaultdict(list)
    for piece in _pieces("", leaf, target, sent):
        parts[piece.device].append(piece)
    shards = [
        _assembled(parts[device], bounds, old, SingleDeviceSharding(device, memory_kind=target.memory_kind))
        for bounds, devices in blocks(leaf.shape, target).items()
        for device in devices
    ]
    return jax.make_array_from_single_device_arrays(leaf.shape, target, shards)


def _assembled(
    parts: Sequence[MovedPiece],
    bounds: Bounds,
    old: dict[jax.Device, tuple[jax.Array, Bounds]],
    place: SingleDeviceSharding,
) -> jax.Array:
    """Make one shard of its parts.

    Args:
        parts: where each part is now.
        bounds: of the new shard in the array.
        old: the shards that there are, by device, with their bounds.
        place: where it is to live.
    """
    data, held = old[parts[0].source]
    if held == bounds:
        return jax.device_put(data, place)
    on_device = SingleDeviceSharding(parts[0].device)
    shard = jnp.zeros(shape_of(bounds), data.dtype, device=on_device)
    for part in parts:
        data, held = old[part.source]
        if data.sharding.memory_kind != part.source.default_memory().kind:  # nothing is computed in a host's memory
            data = jax.device_put(data, SingleDeviceSharding(part.source))
        for slab in _slabs(part):
            piece = jax.device_put(_cut(data, _within(slab, held), shape_of(slab)), on_device)
            shard = _written(shard, piece, _within(slab, bounds))
    return jax.device_put(shard, place)


def _slabs(part: MovedPiece) -> Iterator[Bounds]:
    """Cut a part along its longest dim, so that no slab has more than `MOST_BYTES` unless one row has."""
    if part.num_bytes <= MOST_BYTES:
        yield part.bounds
        return
    dim = max(range(len(part.bounds)), key=lambda i: part.bounds[i][1] - part.bounds[i][0])
    start, stop = part.bounds[dim]
    rows = max(1, MOST_BYTES * (stop - start) // part.num_bytes)
    for low in range(start, stop, rows):
        yield (*part.bounds[:dim], (low, min(low + rows, stop)), *part.bounds[dim + 1 :])


def _within(inner: Bounds, outer: Bounds) -> tuple[int, ...]:
    """Return where a block begins in another."""
    return tuple(start - low for (start, _), (low, _) in zip(inner, outer, strict=True))


_cut = jax.jit(jax.lax.dynamic_slice, static_argnums=2)
_written = jax.jit(jax.lax.dynamic_update_slice, donate_argnums=0)
