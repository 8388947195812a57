"""Find memory that costs more than it must: what does not fit, is replicated, or could be reused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import MemoryFacts, ValueFacts
from outlay.analysis.attribution.provenance import is_users, read_op_name
from outlay.analysis.findings.compiler_messages import size_bytes
from outlay.analysis.findings.finding import Evidence, Finding, first_source
from outlay.analysis.hlo.hlo_module import SourceLine, read_shapes, total_bytes
from outlay.core.memory_pool import MEM_FRACTION
from outlay.core.quantities import counted, format_bytes, listed

SHARE = 0.1
"""The share of a device's state from which a replicated leaf is worth a finding."""

CONSTANT_BYTES = 2**20
"""The bytes from which an array in the program's own text is worth a finding."""

_MAX_NAMED = 4
_MIN_BYTES = 1024
"""Bytes below which nothing is reported, such as a step counter."""

_FIX = (
    "more devices to split over (fsdp, tensor_parallel), smaller microbatches (accumulate=...), "
    "jax.checkpoint on a layer, or bfloat16 parameters"
)
# libtpu's messages: the first for temporaries that cannot fit, the second after it has placed buffers.
_USED = re.compile(r"(?:\(|Used )(?P<needed>[\d.]+\w+)\)? (?:exceeds available HBM \(|of )(?P<there>[\d.]+\w+)")
_BUFFER = re.compile(r"Size: ([\d.]+\w+)(?:\s+Operator: (.*?))?\s+Shape: (\S+)", re.DOTALL)
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_NUM_SHOWN = 3


def too_large(memory: MemoryFacts) -> Iterator[Finding]:
    """Find steps that need more memory than the device has, or than JAX takes by default."""
    if (share := memory.fraction) is not None:
        text = (
            f"the step needs about {format_bytes(memory.needed)}, but JAX as it is set takes only "
            f"{format_bytes(memory.pool)} of the device's {format_bytes(memory.capacity or 0)}"
        )
        fix = f"set {MEM_FRACTION}={share:.2f}; or {_FIX}"
        yield Finding("tight-memory", text, fix, max(0, memory.needed - memory.pool), first_source(memory.largest))
    if memory.verdict != "does not fit":
        return
    text = (
        f"the step needs {format_bytes(memory.peak)} on a device of {format_bytes(memory.capacity or 0)}: "
        f"{format_bytes(memory.peak - memory.most)} too much; {_largest(memory.largest)}"
    )
    yield Finding("out-of-memory", text, _FIX, memory.peak, first_source(memory.largest))


def gave_up(failure: str, traced: Sequence[ValueFacts] = ()) -> Finding:
    """Return the finding for a compiler that ran out of memory, with what it says.

    Args:
        failure: the compiler's error.
        traced: the largest arrays of the traced program, for a compiler that lists none.
    """
    largest, used = buffers_in(failure), _USED.search(failure)
    of_trace = f"the compiler lists no arrays; in the traced program, before they are split, {_largest(traced)}"
    why = f"the step needs {used['needed']} on a device of {used['there']}" if used else failure.strip().splitlines()[0]
    text = f"the compiler gave up: {why}; {_largest(largest) if largest else of_trace}"
    return Finding("out-of-memory", text, _FIX, size_bytes(used["needed"]) if used else 0, first_source(largest))


def buffers_in(failure: str) -> tuple[ValueFacts, ...]:
    """Return the largest buffers that a compiler's error lists."""
    buffers = []
    for size, operator, shape in _BUFFER.findall(failure):
        arrays = read_shapes(shape)
        op_name, source = _OP_NAME.search(operator), _SOURCE.search(operator)
        line = SourceLine(source[1], int(source[2]), "") if source and is_users(source[1]) else None
        named = read_op_name(op_name[1]) if op_name else None
        what = f"{named.primitive}, {named.phase}" if named else op_name[1] if op_name else ""
        dims, dtype = (arrays[0].dims, arrays[0].dtype) if arrays else ((), "")
        buffers.append(ValueFacts("", dims, dtype, size_bytes(size), what, line))
    return tuple(sorted(buffers, key=lambda value: -value.num_bytes))


def _largest(largest: Sequence[ValueFacts]) -> str:
    if not largest:
        return "no array is named"
    alike: dict[str, int] = {}
    for value in largest:
        at = f", {value.source}" if value.source else ""
        words = f"{format_bytes(value.num_bytes)} {value.what or value.name} ({value.dtype}{list(value.shape)}{at})"
        alike[words] = alike.get(words, 0) + 1
    shown = [f"{count} times {words}" if count > 1 else words for words, count in alike.items()]
    return "largest: " + ", ".join(shown[:_NUM_SHOWN])


def whole_leaves(evidence: Evidence) -> Iterator[Finding]:
    """Find state that is replicated, if it is a large share of a device's state and other state is split."""
    program = evidence.program
    if program is None or program.mesh.size == 1:
        return
    state = program.plan.state
    held = sum(leaf.bytes_per_device for leaf in state)
    # In plain data parallelism every leaf is whole on purpose.
    if not any(leaf.is_split for leaf in state):
        return
    for leaf in state:
        if leaf.is_split or leaf.bytes_per_device < SHARE * held:
            continue
        text = (
            f"{leaf.path} is replicated on all {leaf.num_copies} devices: {format_bytes(leaf.bytes_total)} each, "
            f"{leaf.bytes_total / held:.0%} of the state that a device holds ({leaf.reason or leaf.rule})"
        )
        fix = f"split it by a rule, ({leaf.path!r}, P(...)), or by fsdp with a smaller min_size"
        yield Finding("replicated", text, fix, leaf.bytes_total)


def large_constants(evidence: Evidence) -> Iterator[Finding]:
    """Find arrays that the function closes over: they are copied to every device, and part of the program's text."""
    module = evidence.module
    # On one device there is nothing to split.
    if module.num_partitions == 1:
        return
    for one in module.instructions_of("constant"):
        size = total_bytes(one.shapes)
        if size >= CONSTANT_BYTES:
            array = f"{one.shapes[0].dtype}{list(one.shapes[0].dims)}"
            text = f"a constant {array} of {format_bytes(size)} is part of the program, so every device holds all of it"
            fix = "pass it as an argument (in the batch or the state), where the layout can split it"
            yield Finding("replicated", text, fix, size)


def donated_in_vain(evidence: Evidence) -> Iterator[Finding]:
    """Find donated leaves whose memory no output could use."""
    used = {number for _, number in evidence.module.input_output_alias}
    lost = [leaf for leaf in evidence.leaves if leaf.donated and leaf.number not in used]
    cost = sum(leaf.num_bytes for leaf in lost)
    if cost < _MIN_BYTES:
        return
    paths = [leaf.path for leaf in sorted(lost, key=lambda leaf: -leaf.num_bytes)]
    text = (
        f"the memory of {counted(len(lost), 'donated leaf', 'donated leaves')} is not reused, "
        f"{format_bytes(cost)}: {listed(paths, _MAX_NAMED)}"
    )
    fix = "return each with the shape, dtype and sharding it came with, or do not donate it"
    yield Finding("donation", text, fix, cost)


def state_not_donated(evidence: Evidence) -> Iterator[Finding]:
    """Find a first argument that comes back as it was but is not donated, so that it exists twice during the step."""
    if evidence.state is None or evidence.state.is_donated:
        return
    cost = sum(leaf.num_bytes for leaf in evidence.leaves[: evidence.state.num_leaves])
    if cost >= _MIN_BYTES:
        text = f"the first argument comes back with the same shapes but is not donated: {format_bytes(cost)} held twice"
        yield Finding(
            "donation", text, "donate it, jax.jit(..., donate_argnums=0), and use what the call returns", cost
        )


def state_that_moves(evidence: Evidence) -> Iterator[Finding]:
    """Find state that comes back with another sharding: the next call compiles again, or moves it."""
    moved = evidence.state.moved if evidence.state else ()
    if moved:
        num_bytes = {leaf.number: leaf.num_bytes for leaf in evidence.leaves}
        cost = sum(num_bytes.get(leaf.parameter, 0) for leaf in moved)
        leaves = [f"{leaf.path or 'the array'} {leaf.before} -> {leaf.after}" for leaf in moved]
        text = (
            f"{counted(len(moved), 'leaf', 'leaves')} of the first argument come back with another sharding, so "
            f"the next call moves them or compiles again: {listed(leaves, _MAX_NAMED)}"
        )
        fix = "return them with the shardings they came with, jax.jit(..., out_shardings=...), or use outlay.program"
        yield Finding("state-moves", text, fix, cost)
