"""What sends and receives compute: between devices, between the slices of TPUs, and to a callback on the host.

A send and its receive are instructions of their own that share a channel or a rendezvous. A receive ends after its send
has begun, so what was sent is known where the receive is done. Of several slices each runs the program's text, and a
target names devices as JAX does: 100000 x slice, counted from 1, + the number of the chip inside the slice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.execute.operation import Meanings, Operation
from outlay.analysis.hlo.hlo_module import Computation, Instruction, Shape

_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')
_TARGET = re.compile(r'_xla_megascale_target="?((?:\{[^"]*\})+(?:x\{[^"]*?\})?)')
_REDUCES = re.compile(r'_xla_megascale_reduce_operation="?(\w+)')
_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[^"]*\}\}|\{\})')
_SLICES, _A_SLICE = '_xla_host_transfer_handler_name="xla_megascale_runtime"', 100_000
_NUMBERS = re.compile(r"\d+")
_GROUP = re.compile(r"\{([^{}]*)\}")
_REDUCTIONS: Mapping[str, Callable[..., Any]] = {"SUM": jnp.sum, "PRODUCT": jnp.prod, "MAX": jnp.max, "MIN": jnp.min}
_KINDS = ("ALL_GATHER", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_TO_ALL", "ONE_TO_ONE")
_CALLBACK = re.compile(r"xla_(?:ffi_)?(?:partitioned_)?python_[cg]pu_callback")


def check_slices(device_ids: Sequence[int], num_local: int) -> None:
    """Raise unless the devices of each slice follow one another.

    Args:
        device_ids: JAX's numbers of all devices, in the order of the mesh.
        num_local: how many the text is for.

    Raises:
        ValueError: the mesh has them in another order, of which nothing is known.
    """
    parts = [device_ids[at : at + num_local] for at in range(0, len(device_ids), num_local)]
    if len(parts) > 1 and any(len({number // _A_SLICE for number in part}) > 1 for part in parts):
        raise ValueError("the devices of a slice do not follow one another in the mesh")


def is_left_out(one: Instruction, computation: Computation) -> bool:
    """Return whether an instruction hands values to a callback on the host that returns none that are used."""
    if one.opcode == "custom-call":
        target = one.attributes.get("custom_call_target", "").strip('"')
        return not one.shapes and _CALLBACK.fullmatch(target) is not None
    is_callback = one.opcode == "send" and _is_to_host(one) and not _is_between_slices(one)
    return is_callback and can_be_computed(one, computation)


def can_be_computed(one: Instruction, computation: Computation) -> bool:
    """Return whether a part of a transfer, such as its `recv-done`, has a meaning here."""
    start = _start(one, computation)
    text = start.attributes.get("frontend_attributes", "")
    if not _is_to_host(start):
        return _PAIRS.search(text) is not None
    if _is_between_slices(start):
        kind, reduces = _KIND.search(text), _REDUCES.search(text)
        known = kind is not None and kind[1] in _KINDS and _TARGET.search(text) is not None
        return known and (reduces is None or reduces[1] in _REDUCTIONS)
    return not any(_is_read(one, computation) for one in _answers(start, computation))


def _start(one: Instruction, computation: Computation) -> Instruction:
    return computation.instructions[one.operands[0]] if one.opcode.endswith("-done") else one


def _is_to_host(start: Instruction) -> bool:
    return start.attributes.get("is_host_transfer") == "true"


def _is_between_slices(start: Instruction) -> bool:
    return _SLICES in start.attributes.get("frontend_attributes", "")


def _answers(start: Instruction, computation: Computation) -> list[Instruction]:
    """Return the ends of transfers from the host: of a receive, or of the receives that wait for a send."""
    users = {
        opcode: [one for one in computation.instructions.values() if one.opcode == opcode]
        for opcode in ("send-done", "recv", "recv-done")
    }
    starts = {start.name}
    for opcode in ("send-done", "recv") if start.opcode == "send" else ():
        starts = {one.name for one in users[opcode] if one.operands[0] in starts}
    return [one for one in users["recv-done"] if one.operands[0] in starts]


def _is_read(one: Instruction, computation: Computation) -> bool:
    """Return whether anything reads the array that was received; what only waits reads its token."""
    if one.is_root:
        return True
    readers = [user for user in computation.instructions.values() if one.name in user.operands]
    return any(user.opcode != "get-tuple-element" or user.attributes.get("index") == "0" for user in readers)


def _rendezvous(one: Instruction) -> str:
    text = one.attributes.get("frontend_attributes", "")
    named = _RENDEZVOUS.search(text)
    return named[1] if named else one.attributes.get("channel_id", "")


def _receive_done(operation: Operation) -> Any:
    start = _start(operation.instruction, operation.computation)
    shape = start.shapes[0]
    text = start.attributes.get("frontend_attributes", "")
    kind = _KIND.search(text)
    if kind is None and _is_to_host(start):
        return jnp.zeros(shape.dims, dtype_of(shape.dtype)), ()
    sends = (one for one in operation.computation.instructions.values() if one.opcode == "send")
    send = next(one for one in sends if _rendezvous(one) == _rendezvous(start))
    sent = operation.values[send.name]
    if kind is None:
        pairs = _PAIRS.search(text)
        assert pairs is not None  # or it would be unknown
        return _permuted(operation, sent, [_numbers(pair) for pair in _GROUP.findall(pairs[1])]), ()
    target = _TARGET.search(text)
    assert target is not None
    if kind[1] == "ONE_TO_ONE":
        return _permuted(
            operation, sent, [_positions(operation, _numbers(pair)) for pair in _GROUP.findall(target[1])]
        ), ()
    members = _groups_of(operation, target[1])
    dim = _divided_dim(shape, max(sent.shape, shape.dims, key=math.prod))
    gathered = _of_group(operation, sent, members)
    place = _place(operation, members)
    if kind[1] == "ALL_GATHER":
        return lax.concatenate(list(gathered), dim), ()
    if kind[1] == "ALL_TO_ALL":
        pieces = [jnp.stack(jnp.split(one, len(gathered), axis=dim))[place] for one in gathered]
        return lax.concatenate(pieces, dim), ()
    reduces = _REDUCES.search(text)
    total = _REDUCTIONS[reduces[1] if reduces else "SUM"](gathered, axis=0).astype(sent.dtype)
    if kind[1] == "REDUCE_SCATTER":
        total = jnp.stack(jnp.split(total, len(gathered), axis=dim))[place]
    return total, ()


def _divided_dim(shape: Shape, whole: tuple[int, ...]) -> int:
    """Return the dim along which pieces lie one after the other in memory: the slowest that is not 1."""
    slowest_last = _numbers(shape.layout.partition(":")[0]) or [*reversed(range(len(whole)))]
    return next((dim for dim in reversed(slowest_last) if whole[dim] > 1), 0)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBERS.findall(text)]


def _positions(operation: Operation, devices: list[int]) -> list[int]:
    return [operation.device_ids.index(device) for device in devices]


def _groups_of(operation: Operation, target: str) -> list[list[int]]:
    """Return the groups of a target, as positions: `{1,2}x{0:3}` has one for each device of a slice."""
    slices, product, devices = target.partition("x")
    groups = (
        [[number * _A_SLICE + device for number in _ranges(slices)] for device in _ranges(devices)]
        if product
        else [_numbers(group) for group in _GROUP.findall(target)]
    )
    return [_positions(operation, group) for group in groups]


def _ranges(text: str) -> list[int]:
    """Read `{0,2:4}`, whose ranges have both ends."""
    ends = [_numbers(part) for part in text.strip("{}").split(",")]
    return [number for first, *last in ends for number in range(first, (last or [first])[0] + 1)]


def _everywhere(operation: Operation, value: Any) -> Any:
    return lax.all_gather(value, operation.axes)


def _of_group(operation: Operation, value: Any, groups: list[list[int]]) -> Any:
    members = np.zeros((sum(map(len, groups)), len(groups[0])), np.int32)
    for group in groups:
        members[group] = group
    return _everywhere(operation, value)[jnp.asarray(members)[lax.axis_index(operation.axes)]]


def _place(operation: Operation, groups: list[list[int]]) -> Any:
    places = np.zeros(sum(map(len, groups)), np.int32)
    for group in groups:
        places[group] = range(len(group))
    return jnp.asarray(places)[lax.axis_index(operation.axes)]


def _permuted(operation: Operation, value: Any, pairs: list[list[int]]) -> Any:
    """Send a value to another device; who is sent nothing has zeros."""
    everywhere = _everywhere(operation, value)
    source = np.full(len(everywhere), -1, np.int32)
    for sender, receiver in pairs:
        source[receiver] = sender
    own_sender = jnp.asarray(source)[lax.axis_index(operation.axes)]
    return jnp.where(own_sender >= 0, everywhere[jnp.maximum(own_sender, 0)], jnp.zeros_like(value))


def _slice_number(operation: Operation) -> Any:
    return (lax.axis_index(operation.axes) // operation.module.num_devices).astype(operation.dtype)


def _padded(operation: Operation) -> Any:
    """Fill up an array with zeros to whole tiles."""
    (value,) = operation.operands
    return jnp.pad(value, [(0, end - size) for end, size in zip(operation.shape.dims, value.shape, strict=True)])


TRANSFERRING: Meanings = {
    "recv": lambda operation: (),
    "recv-done": _receive_done,
    "send": lambda operation: operation.operands[0],
    "send-done": lambda operation: (),
}
SLICE_CALLS: Meanings = {"SliceId": _slice_number, "ZeroCrop": _padded}
