"""What collectives compute: exchanges between the devices of a group, whatever their spelling.

The groups of a compiled program are lists of devices, in any order, that need not be axes of a mesh. So each device
gathers the values of all and takes those of its group, in the group's order: one meaning for every form of groups.
Slices of TPUs run the same text one beside the other, each with groups of its own devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.execute.operation import Meanings, Operation
from outlay.analysis.hlo.groups import Groups, groups_of

_STARTS = "-start"


def _device_number(operation: Operation) -> Any:
    """Return this device's position in the program: among the devices of its slice, if there are several slices."""
    return lax.axis_index(operation.axes) % operation.module.num_devices


def _partition_id(operation: Operation) -> Any:
    return _device_number(operation).astype(operation.dtype)


def _of_slice(operation: Operation, value: Any) -> Any:
    """Gather a value from all devices of this device's slice, or of the program if there is one."""
    everyone, num = lax.all_gather(value, operation.axes), operation.module.num_devices
    if len(everyone) == num:
        return everyone
    first = lax.axis_index(operation.axes) // num * num
    return lax.dynamic_slice_in_dim(everyone, first, num)


def _groups(operation: Operation) -> Groups:
    groups = groups_of(operation.module, operation.instruction)
    if not groups or len({len(group) for group in groups}) > 1:
        raise ValueError(f"the groups of {operation.instruction.name} cannot be read")
    return groups


def _of_group(operation: Operation, value: Any, groups: Groups) -> Any:
    """Return the values of this device's group, one after the other along a new first dim."""
    members = np.zeros((operation.module.num_devices, len(groups[0])), np.int32)
    for group in groups:
        for member in group:
            members[member] = group
    return _of_slice(operation, value)[jnp.asarray(members)[_device_number(operation)]]


def _place_in_group(operation: Operation, groups: Groups) -> Any:
    places = np.zeros(operation.module.num_devices, np.int32)
    for group in groups:
        places[list(group)] = range(len(group))
    return jnp.asarray(places)[_device_number(operation)]


def _returned(operation: Operation, results: Sequence[Any]) -> Any:
    """Return the results as the instruction spells them: most starts return their operands besides."""
    one = operation.instruction
    returns_operands = one.opcode.endswith(_STARTS) and one.opcode != "all-reduce-start"
    shapes = one.shapes[len(results) :] if returns_operands else one.shapes
    # A TPU's collective may also round or widen what it returns.
    results = [value.astype(dtype_of(shape.dtype)) for value, shape in zip(results, shapes, strict=False)]
    value = results[0] if len(results) == 1 else tuple(results)
    if not returns_operands:
        return value
    return operation.operands[0] if len(operation.operands) == 1 else operation.operands, value


def _summed(operation: Operation, members: Any) -> Any:
    combine = jax.vmap(operation.applied("to_apply"))
    flat = members.reshape(members.shape[0], -1)
    total = flat[0]
    for member in flat[1:]:
        total = combine(total, member)
    return total.reshape(members.shape[1:])


def _all_reduce(operation: Operation) -> Any:
    groups = groups_of(operation.module, operation.instruction)
    if len({len(group) for group in groups}) > 1:
        return _returned(operation, [_sum_by_sizes(operation, value, groups) for value in operation.operands])
    groups = _groups(operation)
    sums = [_summed(operation, _of_group(operation, value, groups)) for value in operation.operands]
    return _returned(operation, sums)


def _sum_by_sizes(operation: Operation, value: Any, groups: Groups) -> Any:
    """Return sums over groups of different sizes, which only wrong programs have."""
    result = value
    for size in sorted({len(group) for group in groups}):
        alike = tuple(group for group in groups if len(group) == size)
        takes_part = np.zeros(operation.module.num_devices, bool)
        takes_part[[device for group in alike for device in group]] = True
        total = _summed(operation, _of_group(operation, value, alike))
        result = jnp.where(jnp.asarray(takes_part)[_device_number(operation)], total, result)
    return result


def _reduce_scatter(operation: Operation) -> Any:
    groups, dim = _groups(operation), operation.number("dimensions", 0)
    place = _place_in_group(operation, groups)
    results = []
    for value in operation.operands:
        total = _summed(operation, _of_group(operation, value, groups))
        size = total.shape[dim] // len(groups[0])
        results.append(lax.dynamic_slice_in_dim(total, place * size, size, dim))
    return _returned(operation, results)


def _all_gather(operation: Operation) -> Any:
    groups, dim = _groups(operation), operation.number("dimensions", 0)
    results = [lax.concatenate(list(_of_group(operation, value, groups)), dim) for value in operation.operands]
    return _returned(operation, results)


def _all_to_all(operation: Operation) -> Any:
    """Exchange pieces: of one array along a dim, or of a tuple with one array for each member."""
    groups = _groups(operation)
    place = _place_in_group(operation, groups)
    if "dimensions" in operation.instruction.attributes:
        dim = operation.number("dimensions", 0)
        results = []
        for value in operation.operands:
            pieces = jnp.stack(jnp.split(value, len(groups[0]), axis=dim))
            received = jnp.take(_of_group(operation, pieces, groups), place, axis=1)
            results.append(lax.concatenate(list(received), dim))
        return _returned(operation, results)
    pieces = jnp.stack(operation.operands)
    received = jnp.take(_of_group(operation, pieces, groups), place, axis=1)
    return _returned(operation, list(received))


def _permute(operation: Operation) -> Any:
    """Send each value to another device; who is sent nothing has zeros."""
    pairs = groups_of(operation.module, operation.instruction)
    source = np.full(operation.module.num_devices, -1, np.int32)
    for sender, receiver in pairs:
        source[receiver] = sender
    own_sender = jnp.asarray(source)[_device_number(operation)]
    results = []
    for value in operation.operands:
        sent = _of_slice(operation, value)[jnp.maximum(own_sender, 0)]
        results.append(jnp.where(own_sender >= 0, sent, jnp.zeros_like(sent)))
    return _returned(operation, results)


def _ragged_all_to_all(operation: Operation) -> Any:
    """Write rows of each member's input into this device's output, as many and where the members say."""
    groups = _groups(operation)
    place = _place_in_group(operation, groups)
    value, output, *lists = operation.operands
    inputs = _of_group(operation, value, groups)
    starts, sizes, ends, _ = (jnp.take(_of_group(operation, one, groups), place, axis=1) for one in lists)
    rows = jnp.arange(len(output))
    for member in range(len(groups[0])):
        offset = rows - ends[member]
        taken = jnp.take(inputs[member], offset + starts[member], axis=0, mode="clip")
        is_written = (offset >= 0) & (offset < sizes[member])
        output = jnp.where(is_written.reshape(-1, *(1,) * (output.ndim - 1)), taken, output)
    return _returned(operation, [output])


def _broadcast_from_first(operation: Operation) -> Any:
    groups = _groups(operation)
    return _returned(operation, [_of_group(operation, value, groups)[0] for value in operation.operands])


def _done(operation: Operation) -> Any:
    (started,) = operation.operands
    return started[1]


EXCHANGING: Meanings = {
    **{
        f"{name}{ending}": meaning
        for name, meaning in (
            ("all-gather", _all_gather),
            ("all-reduce", _all_reduce),
            ("all-to-all", _all_to_all),
            ("collective-broadcast", _broadcast_from_first),
            ("collective-permute", _permute),
            ("ragged-all-to-all", _ragged_all_to_all),
            ("reduce-scatter", _reduce_scatter),
        )
        for ending in ("", _STARTS)
    },
    "all-reduce-done": lambda operation: operation.operands[0],
    **{
        f"{name}-done": _done
        for name in (
            *("all-gather", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all"),
            "reduce-scatter",
        )
    },
    "partition-id": _partition_id,
    "replica-id": lambda operation: jnp.zeros((), operation.dtype),
}
