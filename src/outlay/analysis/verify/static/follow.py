"""Follow a compiled program instruction by instruction, from how its parameters are spread to how its results are.

Fusions and calls are entered, loops are followed until their state no longer changes, and of a conditional's branches
only what all agree on is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outlay.analysis.hlo.hlo_collectives import is_collective
from outlay.analysis.hlo.hlo_module import Computation, HloModule
from outlay.analysis.hlo.loops import contradicting_trip_counts
from outlay.analysis.verify.static.attention_rules import ATTENTION, is_splash_attention, splash_attention
from outlay.analysis.verify.static.convolution_rules import CONVOLUTION, LIBRARY_CONVOLUTION
from outlay.analysis.verify.static.device_numbers import computed, value_of
from outlay.analysis.verify.static.entrywise_rules import ENTRYWISE
from outlay.analysis.verify.static.exchange_rules import EXCHANGE
from outlay.analysis.verify.static.index_rules import INDEX
from outlay.analysis.verify.static.product_rules import LIBRARY_PRODUCT, PRODUCT
from outlay.analysis.verify.static.reduction_rules import REDUCTION, REDUCTION_CALLS
from outlay.analysis.verify.static.shape_rules import SHAPE
from outlay.analysis.verify.static.spreads import Spread, Tree, Value, joined, same_trees
from outlay.analysis.verify.static.visit import Reading, Rule, Rules, Suspect, Visit

_MAX_ROUNDS = 20
_NUMBERED = frozenset((*ENTRYWISE, "reshape", "bitcast", "broadcast"))


def followed(reading: Reading, parameters: Mapping[int, Tree]) -> tuple[Tree, ...]:
    """Return how the results of a program are spread.

    Args:
        reading: the program; what is noticed is kept there.
        parameters: how those of its entry are spread, by number.

    Raises:
        ValueError: the text has no entry, or a computation of it no result.
    """
    entry = reading.module.computations.get(reading.module.entry)
    if entry is None:
        raise ValueError("the text has no computation to begin with")
    numbers = [one.number for one in entry.instructions.values() if one.opcode == "parameter"]
    result = _run(reading, entry, tuple(parameters[number] for number in sorted(n for n in numbers if n is not None)))
    return result if isinstance(result, tuple) else (result,)


def _run(reading: Reading, computation: Computation, arguments: tuple[Tree, ...]) -> Tree:
    values: dict[str, Tree] = {}

    def run(inner: Computation, inner_arguments: tuple[Tree, ...]) -> Tree:
        return _run(reading, inner, inner_arguments)

    for name, one in computation.instructions.items():
        if one.opcode == "parameter":
            values[name] = arguments[one.number or 0]
        else:
            operands = tuple(values[operand] for operand in one.operands if operand in values)
            values[name] = _result(Visit(one, operands, computation, reading, run, values))
        reading.seen[computation.name, name] = values[name]
    if computation.root is None:
        raise ValueError(f"computation {computation.name} has no result: the text was cut")
    return values[computation.root.name]


def _result(visit: Visit) -> Tree:
    one = visit.instruction
    if one.opcode in _NUMBERED:
        known = [value.numbers for value in visit.arrays if value.numbers is not None]
        if known and len(known) == len(one.operands) and (numbers := computed(one, known)) is not None:
            return _both(value_of(numbers, visit.reading.axes, visit.here), _RULES[one.opcode](visit))
    rule = _RULES.get(one.opcode)
    return rule(visit) if rule is not None else _nothing_known(visit)


def _both(value: Value, by_rule: Tree) -> Tree:
    """Return numbers that are known, which may be split as the rule of their operation says."""
    if not isinstance(by_rule, Value):
        return value
    pairs = zip(value.spreads, by_rule.spreads, strict=True)
    spreads = tuple(rule if one.kind == "varying" and rule.kind == "split" else one for one, rule in pairs)
    return replace(value, spreads=spreads)


def _nothing_known(visit: Visit) -> Tree:
    shapes = visit.instruction.shapes
    return tuple(visit.unknown for _ in shapes) if len(shapes) != 1 else visit.unknown


def _inline(visit: Visit) -> Tree:
    inner = visit.reading.module.called(visit.instruction, "calls", "to_apply", "called_computations")
    return visit.run(inner, visit.operands) if inner is not None else _nothing_known(visit)


def _while(visit: Visit) -> Tree:
    reading = visit.reading
    body = reading.module.called(visit.instruction, "body")
    condition = reading.module.called(visit.instruction, "condition")
    if body is None:
        return _nothing_known(visit)
    (state,) = visit.operands
    noting, reading.is_noting = reading.is_noting, False
    try:
        for number in range(_MAX_ROUNDS):
            following = joined(state, visit.run(body, (state,)), in_loop=True)
            if same_trees(following, state):
                break
            state = following if number < _MAX_ROUNDS - 2 else _given_up(following, visit)
    finally:
        reading.is_noting = noting
    _check_rounds(visit)
    if condition is not None and _exchanges(reading.module, body):
        _check_condition(visit, visit.run(condition, (state,)))
    # What a loop leaves is what its last round returns.
    return visit.run(body, (state,))


def _given_up(state: Tree, visit: Visit) -> Tree:
    return visit.unknown if isinstance(state, Value) else tuple(_given_up(one, visit) for one in state)


def _exchanges(module: HloModule, body: Computation) -> bool:
    """Return whether devices exchange in a computation, or in one that it runs."""
    pending, seen = [body.name], {body.name}
    while pending:
        inner = module.computations.get(pending.pop())
        for one in inner.instructions.values() if inner else ():
            if is_collective(one.opcode):
                return True
            called = [name for name in one.calls if name not in seen]
            seen.update(called)
            pending += called
    return False


def _check_rounds(visit: Visit) -> None:
    rounds = contradicting_trip_counts(visit.reading.module, visit.computation.name, visit.instruction)
    if rounds is not None:
        words = f"ends after {rounds[1]} rounds, and the compiler noted {rounds[0]}"
        visit.reading.note(Suspect("rounds of a loop", "", visit.here, visit.here, words))


def _check_condition(visit: Visit, goes_on: Tree) -> None:
    """Note devices that leave a loop at different times, although they exchange in it."""
    if not isinstance(goes_on, Value) or not visit.reading.by_compiler:
        return
    for axis, one in enumerate(goes_on.spreads):
        if one.kind in ("varying", "partial", "split") and not one.is_loose:
            visit.note("replicas differ", axis, one, "decides when a loop ends, and differs between devices")


def _conditional(visit: Visit) -> Tree:
    attributes, module = visit.instruction.attributes, visit.reading.module
    if "branch_computations" in attributes:
        names = [name.strip("% ") for name in attributes["branch_computations"].strip("{}").split(",")]
    else:
        names = [attributes[f"{which}_computation"].lstrip("%") for which in ("true", "false")]
    chosen = visit.array(0)
    results = [
        visit.run(module.computations[name], (argument,))
        for name, argument in zip(names, visit.operands[1:], strict=False)
    ]
    result = results[0]
    for other in results[1:]:
        result = joined(result, other, in_loop=False)
    return _if_same(result, chosen, visit)


def _if_same(result: Tree, chosen: Value, visit: Visit) -> Tree:
    """Return the result of a conditional in which devices may take different branches."""
    if isinstance(result, tuple):
        return tuple(_if_same(one, chosen, visit) for one in result)
    for axis, one in enumerate(chosen.spreads):
        if one.kind != "replicated":
            result = result.with_spread(axis, Spread("unknown"))
    return result


def _async_start(visit: Visit) -> Tree:
    return visit.operands, _inline(visit)


def _copy_start(visit: Visit) -> Tree:
    return visit.operands[0], visit.operands[0]


def _slice_start(visit: Visit) -> Tree:
    return visit.operands[0], SHAPE["slice"](visit)


def _second(visit: Visit) -> Tree:
    started = visit.operands[0]
    return started[1] if isinstance(started, tuple) and len(started) > 1 else visit.unknown


def _first(visit: Visit) -> Tree:
    return visit.operands[0] if visit.operands else _nothing_known(visit)


def _custom_call(visit: Visit) -> Tree:
    name = visit.instruction.attributes.get("custom_call_target", "").strip('"')
    rule = _CALLS.get(name, _unknown_call)
    return rule(visit)


def _unknown_call(visit: Visit) -> Tree:
    """Follow a call that is only known to give equal results for equal operands."""
    kinds = [{value.spreads[axis].kind for value in visit.arrays} for axis in range(visit.num_axes)]
    equal, unknown = visit.replicated.spreads, visit.unknown.spreads
    spreads = tuple(equal[at] if kind == {"replicated"} else unknown[at] for at, kind in enumerate(kinds))
    result = Value(spreads)
    return tuple(result for _ in visit.instruction.shapes) if len(visit.instruction.shapes) != 1 else result


def _kernel(visit: Visit) -> Tree:
    return splash_attention(visit) if is_splash_attention(visit) else _unknown_call(visit)


def _blank(visit: Visit) -> Tree:
    """Follow memory that is set aside and not written to yet, which may be taken for zeros."""
    every = frozenset(range(len(visit.shape.dims)))
    values = tuple(Value(visit.replicated.spreads, every, is_zero=True) for _ in visit.instruction.shapes)
    return values[0] if len(values) == 1 else values


def _async_collective_start(visit: Visit) -> Tree:
    collective = visit.computation.instructions[visit.instruction.operands[0]]
    flags = (visit.replicated for _ in visit.instruction.shapes[2:])
    return visit.values[collective.operands[0]], visit.operands[0], *flags


def _async_collective_done(visit: Visit) -> Tree:
    known = visit.computation.instructions
    for name, value in zip(visit.instruction.operands, visit.operands, strict=False):
        if known[name].opcode != "parameter":
            return value
    return visit.unknown


_CALLS: dict[str, Rule] = {
    **ATTENTION,
    **LIBRARY_CONVOLUTION,
    **LIBRARY_PRODUCT,
    **REDUCTION_CALLS,
    **dict.fromkeys(
        (
            *("AssumeGatherIndicesInBound", "AssumeScatterIndicesInBound", "GatherScatterIndicesBitpacked"),
            *("MoveToDevice", "MoveToHost", "ScalarToVector", "Sharding", "annotate_device_placement"),
            *("SPMDFullToShardShape", "SPMDShardToFullShape"),
        ),
        _first,
    ),
    "AllocateBuffer": _blank,
    "AsyncCollectiveDone": _async_collective_done,
    "AsyncCollectiveStart": _async_collective_start,
    "ConcatBitcast": SHAPE["concatenate"],
    "X64Combine": ENTRYWISE["complex"],
    "tpu_custom_call": _kernel,
}
_CONTROL: Rules = {
    "async-done": _second,
    "async-start": _async_start,
    "async-update": _first,
    "call": _inline,
    "call-done": _second,
    "call-start": _async_start,
    "conditional": _conditional,
    "copy-done": _second,
    "copy-start": _copy_start,
    "custom-call": _custom_call,
    "fusion": _inline,
    "fusion-done": _second,
    "fusion-start": _async_start,
    "map": ENTRYWISE["map"],
    "slice-done": _second,
    "slice-start": _slice_start,
    "while": _while,
}
_RULES: dict[str, Rule] = {**ENTRYWISE, **SHAPE, **REDUCTION, **PRODUCT, **CONVOLUTION, **INDEX, **EXCHANGE, **_CONTROL}


def is_known(value: Tree) -> bool:
    """Return whether it is known, along every axis, how devices hold a value."""
    if isinstance(value, tuple):
        return all(map(is_known, value))
    return all(one.kind != "unknown" for one in value.spreads)
