"""Values that are moved, and moved back before anything needed them there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.findings.constraints import at, is_constrained, is_under_vmap, spread_samples
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.find_collectives import KINDS
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.core.quantities import format_bytes

_MAX_VALUES = 400
_HOPS = 3


def back_and_forth(evidence: Evidence) -> Iterator[Finding]:
    """Exchanges that another undoes, and gathers of what is cut up again, with only element-wise work between."""
    known = evidence.by_name
    for computation in evidence.module.computations.values():
        for one in computation.instructions.values():
            found = known.get(one.name)
            if found is None or found.kind not in ("all-to-all", "all-gather", "collective-permute"):
                continue
            ends = list(_where_it_ends(evidence.module, computation, one))
            undone = [known[end.name] for end in ends if end.name in known]
            back = [other for other in undone if other.kind == found.kind and other.axes == found.axes]
            if found.kind == "all-to-all" and back:
                yield _exchanged_twice(evidence, found, back[0])
            elif found.kind == "all-gather" and ends and all(_is_own_piece(computation, end) for end in ends):
                yield _gathered_and_cut(found, evidence, computation, ends)


def _where_it_ends(module: HloModule, computation: Computation, one: Instruction) -> Iterator[Instruction]:
    """What takes a value, past element-wise operations: collectives, products, cuts, the end of the computation."""
    pending, seen = [one], {one.name}
    while pending and len(seen) < _MAX_VALUES:
        value = pending.pop(0)
        users = computation.users.get(value.name, ())
        if value.is_root:
            yield value
        for user in users:
            if user.name in seen:
                continue
            seen.add(user.name)
            passes = is_elementwise(module, user) and not _is_own_piece(computation, user)
            if passes or user.opcode.endswith("-done"):
                pending.append(user)
            else:
                yield user


def _is_own_piece(computation: Computation, one: Instruction) -> bool:
    """Whether an instruction cuts out a piece that depends on which device it runs on."""
    if one.opcode.removesuffix("-start") in KINDS or ("slice" not in one.opcode and one.opcode != "fusion"):
        return False
    pending = [(operand, _HOPS) for operand in one.operands]
    while pending:
        name, hops = pending.pop()
        operand = computation.instructions.get(name)
        if operand is None:
            continue
        if operand.opcode in ("partition-id", "replica-id"):
            return True
        if hops and all(not shape.dims or shape.dtype in ("u32", "s32") for shape in operand.shapes):
            pending += [(further, hops - 1) for further in operand.operands]
    return False


def _exchanged_twice(evidence: Evidence, there: CollectiveFacts, back: CollectiveFacts) -> Finding:
    cost = there.bytes_per_step + back.bytes_per_step
    text = (
        f"a value is exchanged by all-to-all over {_axes(there)}{_at(there)} and back{_at(back)}, with only "
        f"element-wise operations between: {format_bytes(cost)} a step"
    )
    lines = list(dict.fromkeys(one.source for one in (there, back)))
    said = [source for source in lines if is_constrained(evidence.module, source)]
    if said:
        fix = f"keep one sharding: take the constraint away{at(said[0])}, or write the same spec on both sides"
    else:
        axis = next(iter(there.axes), "data")
        fix = f"keep one sharding: {spread_samples(evidence, 'the values', there.source, axis)}"
    return Finding("resharding", text, fix, cost, there.source)


def _gathered_and_cut(
    found: CollectiveFacts, evidence: Evidence, computation: Computation, ends: list[Instruction]
) -> Finding:
    what = found.leaf or found.value
    text = (
        f"{what} is gathered over {_axes(found)}{_at(found)}, and every use cuts a device's own piece out of it again: "
        f"{format_bytes(found.bytes_per_step)} a step"
    )
    instead = f", instead of P(){_at(found)}" if is_constrained(evidence.module, found.source) else _at(found)
    fix = f"constrain it to the spec that it has on both sides, outlay.constrain(x, P(...)){instead}"
    if is_under_vmap(evidence.module, found.source):
        fix += "; inside jax.vmap a spec speaks of one sample, so constrain what vmap takes or returns"
    return Finding("resharding", text, fix, found.bytes_per_step, found.source)


def _axes(found: CollectiveFacts) -> str:
    return "+".join(found.axes) if found.axes else f"{found.group_size} devices"


def _at(found: CollectiveFacts) -> str:
    return at(found.source)


_MOVES = frozenset(
    {
        *("copy", "copy-start", "copy-done", "bitcast", "bitcast-convert", "reshape", "transpose"),
        *("convert", "slice", "dynamic-slice", "optimization-barrier", "opt-barrier", "domain"),
        *("add-dependency", "parameter", "constant", "get-tuple-element", "tuple", "concatenate"),
        *("broadcast", "iota", "partition-id", "replica-id", "pad", "dynamic-update-slice", "compare"),
        *("select", "and", "or"),
    }
)
"""What a fusion that only moves data is made of."""

_CHEAP = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "negate", "abs", "sign", "maximum", "minimum", "clamp"),
        *("power", "exponential", "exponential-minus-one", "log", "log-plus-one", "tanh", "logistic"),
        *("sqrt", "rsqrt", "cbrt", "erf", "sine", "cosine", "floor", "ceil", "round-nearest-even", "not"),
        *("xor"),
    }
)
"""What goes element by element, and so could be computed wherever its operands are."""


def is_elementwise(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction moves data or computes element by element: it would not mind another sharding."""
    if one.opcode == "fusion":
        fused = module.computations.get(one.called("calls"))
        return fused is not None and all(is_elementwise(module, inner) for inner in fused.instructions.values())
    return one.opcode in _MOVES or one.opcode in _CHEAP or bool(re.fullmatch(r"(shift|round)-.*", one.opcode))
