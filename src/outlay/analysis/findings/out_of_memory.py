"""Out of memory, as a finding: how much is missing, and what takes it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.op_name import read_op_name
from outlay.analysis.attribution.program_facts import MemoryFacts, ValueFacts
from outlay.analysis.attribution.who_asked import is_users
from outlay.analysis.findings.finding import Finding
from outlay.analysis.findings.messages import size_bytes
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.analysis.hlo.hlo_shapes import read_shapes
from outlay.core.quantities import format_bytes

_FIX = (
    "more devices to split over (fsdp, tensor_parallel), smaller microbatches (accumulate=...), "
    "jax.checkpoint on a layer, or bfloat16 parameters"
)
# The first is what libtpu says of temporaries that cannot fit, the second what it says after it has placed buffers.
_USED = re.compile(r"(?:\(|Used )(?P<needed>[\d.]+\w+)\)? (?:exceeds available HBM \(|of )(?P<there>[\d.]+\w+)")
_BUFFER = re.compile(r"Size: ([\d.]+\w+)(?:\s+Operator: (.*?))?\s+Shape: (\S+)", re.DOTALL)
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_NUM_SHOWN = 3


def too_large(memory: MemoryFacts) -> Iterator[Finding]:
    """A finding where the step needs more than the device can give, or than JAX takes by itself."""
    if memory.verdict == "may not fit":
        share = min(0.95, math.ceil(100 * memory.needed / (memory.capacity or 1)) / 100)
        text = (
            f"the step needs about {format_bytes(memory.needed)}, and JAX takes {format_bytes(memory.pool)} of "
            f"{format_bytes(memory.capacity or 0)} for its pool"
        )
        fix = f"XLA_PYTHON_CLIENT_MEM_FRACTION={share:.2f}; or {_FIX}"
        yield Finding("tight-memory", text, fix, max(0, memory.needed - memory.pool), _line(memory.largest))
    if memory.verdict != "does not fit":
        return
    missing = memory.peak - memory.most
    text = (
        f"the step needs {format_bytes(memory.peak)} on a device of {format_bytes(memory.capacity or 0)}: "
        f"{format_bytes(missing)} too much; {_largest(memory.largest)}"
    )
    yield Finding("out-of-memory", text, _FIX, memory.peak, _line(memory.largest))


def gave_up(failure: str, traced: Sequence[ValueFacts] = ()) -> Finding:
    """The finding of a compiler that ran out of memory, and what it says of it.

    Args:
        failure: the compiler's error.
        traced: the largest arrays of the traced program, for a compiler that names none.
    """
    largest = buffers_in(failure)
    words = (
        _largest(largest)
        if largest
        else f"the compiler names no arrays; traced, before they are split, {_largest(traced)}"
    )
    used = _USED.search(failure)
    if used is None:
        text = f"the compiler gave up: {failure.strip().splitlines()[0]}"
        return Finding("out-of-memory", f"{text}; {words}", _FIX, 0, _line(largest))
    text = f"the compiler gave up: the step needs {used['needed']} on a device of {used['there']}; {words}"
    return Finding("out-of-memory", text, _FIX, size_bytes(used["needed"]), _line(largest))


def buffers_in(failure: str) -> tuple[ValueFacts, ...]:
    """The largest buffers that a compiler's error lists."""
    found = []
    for size, operator, shape in _BUFFER.findall(failure):
        arrays = read_shapes(shape)
        op_name, source = _OP_NAME.search(operator), _SOURCE.search(operator)
        line = SourceLine(source[1], int(source[2]), "") if source and is_users(source[1]) else None
        named = read_op_name(op_name[1]) if op_name else None
        what = f"{named.primitive}, {named.phase}" if named else op_name[1] if op_name else ""
        first = arrays[0] if arrays else None
        dims, dtype = (first.dims, first.dtype) if first else ((), "")
        found.append(ValueFacts("", dims, dtype, size_bytes(size), what, line))
    return tuple(sorted(found, key=lambda value: -value.num_bytes))


def _largest(largest: Sequence[ValueFacts]) -> str:
    if not largest:
        return "it does not say of what"
    alike: dict[str, int] = {}
    for value in largest:
        at = f", {value.source}" if value.source else ""
        words = f"{format_bytes(value.num_bytes)} {value.what or value.name} ({value.dtype}{list(value.shape)}{at})"
        alike[words] = alike.get(words, 0) + 1
    shown = [f"{count} times {words}" if count > 1 else words for words, count in alike.items()]
    return "largest: " + ", ".join(shown[:_NUM_SHOWN])


def _line(largest: Sequence[ValueFacts]) -> SourceLine | None:
    return next((value.source for value in largest if value.source), None)
