"""Move arrays between any shardings, in pieces that go straight from device to device.

Where the devices of both shardings differ and a shard does not fit as it is, `jax.device_put` brings the array whole to
the host.
Here each device gets only what it lacks, from a device that holds it.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from outlay.arrays.piece_exchange import Slab, exchanged, rounds
from outlay.arrays.sharding_blocks import MOST_BYTES, Bounds, blocks, of_index, shape_of
from outlay.arrays.shardings import given_arrays, target_shardings
from outlay.core.array_leaves import merge_objects, num_bytes, split_objects
from outlay.core.error_types import PlaceError, Problem
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted, format_bytes
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
    def crosses_processes(self) -> bool:
        """Whether it leaves its process."""
        return self.source.process_index != self.device.process_index

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
        PlaceError: leaves live nowhere yet; every leaf is listed.

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
    _check_placed(tree)
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

    Across processes all of them call it, with the same shapes and places. One that has no device of the old mesh gives
    for each array a `jax.ShapeDtypeStruct` with its sharding. On the same devices `outlay.arrays.reshard` may be
    faster, since one program exchanges everything at once. Between jobs a checkpoint carries a state from one mesh to
    another, each device its own slices.

    Args:
        tree: JAX arrays; for a plan, with the paths, shapes and dtypes that it was made for.
        to: where each leaf is to live.
        mesh: the mesh that the plan was made for; a sharding has its own.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: leaves are no JAX arrays, were donated, or shapes do not fit; every leaf is listed.
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
    _check_placed(tree, is_run=True)
    _check_agreed(tree, targets)
    leaves, structure = jax.tree.flatten(tree)
    sent: collections.Counter[jax.Device] = collections.Counter()
    moved = [_moved(leaf, target, sent) for leaf, target in zip(leaves, structure.flatten_up_to(targets), strict=True)]
    return merge_objects(objects, users_nodes(structure.unflatten(moved)))


def _check_placed(tree: Any, *, is_run: bool = False) -> None:
    """Raise if leaves live nowhere, or are to move and have no values here though they live here."""
    problems = []
    for path, leaf in flatten_paths(tree)[0]:
        sharding = getattr(leaf, "sharding", None)
        is_missing = is_run and not isinstance(leaf, jax.Array) and sharding is not None
        if sharding is None or (is_missing and any(map(_is_here, sharding.device_set))):
            what = f"a {type(leaf).__name__} {'has no values' if is_missing else 'lives on no device'}"
            problems.append(Problem("no array of JAX", path, what, "outlay.arrays.put places it"))
    if problems:
        raise PlaceError(f"{counted(len(problems), 'leaf', 'leaves')} cannot be moved:", problems)


def _check_agreed(tree: Any, targets: Any) -> None:
    """Raise in every process if they mean different moves between processes, which would wait for each other."""
    pairs = list(zip(flatten_paths(tree)[0], jax.tree.leaves(targets), strict=True))
    devices = {device for (_, leaf), to in pairs for device in leaf.sharding.device_set | to.device_set}
    if len({device.process_index for device in devices}) < 2:  # which others need not call
        return
    from outlay.arrays.process_agreement import exchange

    meant = {path: _fingerprint(leaf, to) for (path, leaf), to in pairs}
    of_all = exchange(meant)
    problems = []
    for path in dict.fromkeys(itertools.chain(*of_all)):
        odd = [str(process) for process, one in enumerate(of_all) if one.get(path) != of_all[0].get(path)]
        if odd:
            what = f"process {', '.join(odd)} has another shape, dtype or place, old or new, than process 0"
            fix = "give all processes the same global array, as outlay.arrays.put makes it"
            problems.append(Problem("differs", path or "the tree itself", what, fix))
    if problems:
        raise PlaceError(f"{counted(len(problems), 'leaf', 'leaves')} would be moved otherwise elsewhere:", problems)


def _fingerprint(leaf: Any, target: Sharding) -> str:
    places = (
        [(bounds, [device.id for device in some]) for bounds, some in blocks(leaf.shape, sharding).items()]
        for sharding in (leaf.sharding, target)
    )
    return hashlib.blake2b(f"{leaf.shape} {leaf.dtype} {list(places)}".encode(), digest_size=16).hexdigest()


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


def _moved(leaf: Any, target: Sharding, sent: collections.Counter[jax.Device]) -> jax.Array:
    """Assemble each new shard of a leaf on its device.

    Args:
        leaf: the array, or its shape and old sharding where only other processes hold it.
        target: its new sharding.
        sent: bytes that each device sends already.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_moved(_words(leaf), target, sent), impl=jax.random.key_impl(leaf))
    old = {shard.device: (shard.data, of_index(shard.index, leaf.shape)) for shard in _own_shards(leaf)}
    bounds_of = {device: bounds for bounds, some in blocks(leaf.shape, target).items() for device in some}
    shards: dict[jax.Device, jax.Array] = {}
    inside: list[Slab] = []
    between: list[Slab] = []
    for piece in _pieces("", leaf, target, sent):
        data, held = old.get(piece.source, (None, None))
        if piece.crosses_processes:
            between += _slabs(piece)
        elif data is not None and held == bounds_of[piece.device]:
            shards[piece.device] = data
        elif data is not None:
            inside += _slabs(piece)
    for device in (device for device in bounds_of if _is_here(device) and device not in shards):
        shards[device] = jnp.zeros(shape_of(bounds_of[device]), leaf.dtype, device=device)
    read = functools.partial(_read, old=old)
    here = ((slab, jax.device_put(read(slab), SingleDeviceSharding(slab.device))) for slab in inside)
    there = (arrived for some in rounds(between) for arrived in exchanged(some, leaf.dtype, read))
    for slab, data in itertools.chain(here, there):
        shards[slab.device] = _written(shards[slab.device], data, _within(slab.bounds, bounds_of[slab.device]))
    places = {device: SingleDeviceSharding(device, memory_kind=target.memory_kind) for device in shards}
    arrays = [jax.device_put(shard, places[device]) for device, shard in shards.items()]
    return jax.make_array_from_single_device_arrays(leaf.shape, target, arrays, dtype=leaf.dtype)


def _words(keys: Any) -> Any:
    """Return random keys as integers; of a shape their shape."""
    if isinstance(keys, jax.Array):
        return jax.random.key_data(keys)
    words = jax.eval_shape(jax.random.key_data, keys)
    return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=keys.sharding)


def _own_shards(leaf: Any) -> Sequence[Any]:
    return leaf.addressable_shards if isinstance(leaf, jax.Array) else ()


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _read(slab: Slab, old: dict[jax.Device, tuple[jax.Array, Bounds]]) -> jax.Array:
    """Cut a slab out of the shard that its source holds."""
    data, held = old[slab.source]
    if data.sharding.memory_kind != slab.source.default_memory().kind:  # nothing is computed in a host's memory
        data = jax.device_put(data, SingleDeviceSharding(slab.source))
    return _cut(data, _within(slab.bounds, held), shape_of(slab.bounds))


def _slabs(part: MovedPiece) -> Iterator[Slab]:
    """Cut a part along its longest dim, so that no slab has more than `MOST_BYTES` unless one row has."""
    if part.num_bytes <= MOST_BYTES:
        yield Slab(part.source, part.device, part.bounds)
        return
    dim = max(range(len(part.bounds)), key=lambda i: part.bounds[i][1] - part.bounds[i][0])
    start, stop = part.bounds[dim]
    rows = max(1, MOST_BYTES * (stop - start) // part.num_bytes)
    for low in range(start, stop, rows):
        bounds = (*part.bounds[:dim], (low, min(low + rows, stop)), *part.bounds[dim + 1 :])
        yield Slab(part.source, part.device, bounds)


def _within(inner: Bounds, outer: Bounds) -> tuple[int, ...]:
    """Return where a block begins in another."""
    return tuple(start - low for (start, _), (low, _) in zip(inner, outer, strict=True))


_cut = jax.jit(jax.lax.dynamic_slice, static_argnums=2)
_written = jax.jit(jax.lax.dynamic_update_slice, donate_argnums=0)
