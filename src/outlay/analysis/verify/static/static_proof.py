"""Prove without computing that a compiled program's exchanges fit its layout: each sum there, once, over its axis.

Each value of the partitioned program is followed by how the devices along each mesh axis hold it, from the parameters,
which are spread as the plan says, to the results, which must be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.analysis.attribution.leaves import each_sharding
from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_collectives import collectives_of, is_collective
from outlay.analysis.hlo.hlo_module import HloModule, Instruction, SourceLine
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.host import by_path
from outlay.analysis.verify.stages import Stage
from outlay.analysis.verify.static.computed_results import computed_results
from outlay.analysis.verify.static.expected_spreads import as_planned, in_words, planned
from outlay.analysis.verify.static.follow import followed, is_known
from outlay.analysis.verify.static.spreads import Cause, Spread, Tree, Value
from outlay.analysis.verify.static.static_verification import FaultKind, StaticFault, StaticVerification
from outlay.analysis.verify.static.stored_over import overwritten
from outlay.analysis.verify.static.visit import BY_USER, Reading, Suspect
from outlay.analysis.verify.static.where_lost import where_lost
from outlay.arrays.shardings import shardings
from outlay.core.jax_compat import text_with_constants
from outlay.core.jax_tracing import operations
from outlay.core.paths import under
from outlay.core.quantities import counted
from outlay.program.program import Program

_EXCHANGES = (
    "psum",
    "pmax",
    "pmin",
    "ppermute",
    "pgather",
    "all_gather",
    "all_to_all",
    "ragged_all_to_all",
    "reduce_scatter",
)
"""How the names of JAX's operations begin by which devices exchange."""


@dataclass(frozen=True)
class Placed:
    """An array that a program takes or returns."""

    path: str
    sharding: Any


def verify_statically(program: Program, stage: Stage) -> StaticVerification:
    """Return the proof of a program, which is compiled for its devices, be they here or not.

    Args:
        program: the program.
        stage: is told what is done next.
    """
    stage("compiling")
    compiled = program.compiled
    stage("following the compiled program")
    return of_text(program, compiled, parse_hlo(text_with_constants(compiled)))


def of_text(program: Program, compiled: jax.stages.Compiled, module: HloModule) -> StaticVerification:
    """Return the proof of what a program was compiled to."""
    at = each_sharding(compiled.args_info, compiled.input_shardings)
    state, batch = _planned_leaves(program)
    taken = [leaf for leaf, where in zip((*state, *batch), at, strict=True) if where is not None]
    paths = by_path(program.output_shapes, "outputs")
    num_outputs = len(paths)
    out_shardings = jax.tree.leaves(compiled.output_shardings)[-num_outputs:] if num_outputs else []
    outputs = [Placed(path, where) for path, where in zip(paths, out_shardings, strict=True)]
    axes = tuple((str(name), program.mesh.shape[name]) for name in program.mesh.axis_names)
    words = f"mode {program.mode} on {program.plan.mesh}"
    results = [*(state if program.donate else []), *outputs]
    traced = program.traced_step
    computed = computed_results(traced) if traced is not None else []
    by_compiler = _is_by_compiler(module) or _names_no_exchange(program)
    computed = computed if len(computed) == len(results) else []
    return statically_verified(module, axes, taken, results, words, computed, by_compiler=by_compiler)


def _names_no_exchange(program: Program) -> bool:
    """Return whether no part of the step as it is lowered, whose devices are programmed one by one, exchanges anything.

    A kernel in a `shard_map` exchanges nothing: all sums around it are the compiler's.
    """
    lowered = program.lowered_trace()
    if lowered is None:
        return False
    inside = (
        one.primitive.name for part in operations(lowered, "shard_map") for one in operations(part.params["jaxpr"])
    )
    return not any(name.startswith(_EXCHANGES) for name in inside)


def _planned_leaves(program: Program) -> tuple[list[Placed], list[Placed]]:
    def placed(shapes: Any, root: str) -> list[Placed]:
        where = jax.tree.leaves(shardings(program.plan, shapes, program.mesh, root=root))
        return [Placed(under(root, path), one) for path, one in zip(by_path(shapes), where, strict=True)]

    return placed(program.state_shapes, ""), placed(program.batch_shapes, "batch")


def statically_verified(
    module: HloModule,
    axes: tuple[tuple[str, int], ...],
    parameters: Sequence[Placed],
    results: Sequence[Placed],
    words: str,
    computed: Sequence[bool] = (),
    *,
    by_compiler: bool | None = None,
) -> StaticVerification:
    """Return the proof of a compiled program's text.

    Args:
        module: the program.
        axes: name and size of each mesh axis, the slowest first.
        parameters: what it takes, in order.
        results: what it returns, in order.
        words: what it is, in words.
        computed: for each result whether it is certainly computed; empty if that is not known.
        by_compiler: whether all its exchanges are the compiler's; None for what the text tells.
    """
    reading = Reading(module, axes, _is_by_compiler(module) if by_compiler is None else by_compiler)
    facts = StaticVerification(words, 0, 0, 0, len(results), (), (), reading.by_compiler)
    if module.num_devices != math.prod(size for _, size in axes):
        doubt = f"the text is for {module.num_devices} devices and the mesh has {math.prod(dict(axes).values())}: "
        return dataclasses.replace(facts, doubts=(doubt + "a program of one slice of several cannot be followed yet",))
    if module.cut_in:
        return dataclasses.replace(facts, doubts=(f"its text is cut short: it ends {module.cut_in}",))
    if module.skipped:
        number, line = module.skipped[0]
        lines = counted(len(module.skipped), "line")
        doubt = f"{lines} of its text cannot be read, first line {number}: {line.strip()[:60]!r}"
        return dataclasses.replace(facts, doubts=(doubt,))
    try:
        held = followed(reading, _parameters(module, axes, parameters))
    except (ValueError, KeyError, IndexError) as error:
        return dataclasses.replace(facts, doubts=(f"its text cannot be followed: {error}",))
    if len(held) != len(results):
        doubt = f"its text returns {len(held)} arrays and the step {len(results)}"
        return dataclasses.replace(facts, doubts=(doubt,))
    faults, undecided, axes_of_undecided = _judged(reading, held, results)
    faults += _not_computed(reading, held, parameters, results, computed)
    for one in overwritten(module):
        place = Cause(module.entry, one.made_by)
        suspect = Suspect("memory of another", "", place, Cause(module.entry, one.reader), one.words)
        faults.append(_fault(module, suspect, (results[one.result].path,) if one.result < len(results) else ()))
    num_known = sum(map(is_known, reading.seen.values()))
    return dataclasses.replace(
        facts,
        num_known=num_known,
        num_unknown=len(reading.seen) - num_known,
        num_collectives=len(collectives_of(module)),
        undecided=tuple(undecided),
        faults=tuple(faults),
        lost_at=tuple(where_lost(reading, axes_of_undecided)) if undecided else (),
    )


def _is_by_compiler(module: HloModule) -> bool:
    """Return whether no exchange is the user's: what a sum over devices means is then known of each."""
    names = {one.op_name for _, one in module.instructions()} - {""}
    if not any(BY_USER in name for name in names):
        return bool(names)
    # Exchanges that were joined to one have lost their names.
    exchanges = (one.op_name for _, one in module.instructions() if is_collective(one.opcode))
    return all(name and BY_USER not in name for name in exchanges)


def _parameters(module: HloModule, axes: tuple[tuple[str, int], ...], parameters: Sequence[Placed]) -> dict[int, Tree]:
    entry = module.computations[module.entry]
    ones = [one for one in entry.instructions.values() if one.opcode == "parameter"]
    ones.sort(key=lambda one: one.number or 0)
    shapes = [(shape, one) for one in ones for shape in one.shapes]
    # Arrays that the step closes over may come first.
    num_more = len(shapes) - len(parameters)
    if num_more < 0:
        raise ValueError(f"it takes {len(shapes)} arrays and the step {len(parameters)}")
    values: list[Value] = []
    for number, (shape, one) in enumerate(shapes):
        cause = Cause(entry.name, one)
        where = parameters[number - num_more].sharding if number >= num_more else None
        plan = planned(where, shape, axes, cause)
        values.append(dataclasses.replace(plan, parameter=number - num_more, is_unscaled=True))
    if len(ones) == 1 and len(shapes) > 1:  # very many parameters come as one tuple
        return {ones[0].number or 0: tuple(values)}
    return {one.number or 0: value for one, value in zip(ones, values, strict=True)}


def _judged(
    reading: Reading, held: Sequence[Tree], results: Sequence[Placed]
) -> tuple[list[StaticFault], list[str], set[int]]:
    """Return the faults, each with the results that show it; the undecided results; over which axes they are so."""
    entry = reading.module.computations[reading.module.entry]
    root = entry.root
    shown: dict[tuple[str, str, str], list[str]] = {}
    odd: dict[tuple[str, str, str], Suspect] = {}
    undecided: list[str] = []
    open_axes: set[int] = set()
    for number, (value, result) in enumerate(zip(held, results, strict=True)):
        made_by = _made_by(entry.instructions, root, number)
        if not isinstance(value, Value) or made_by is None:
            undecided.append(result.path)
            continue
        plan = planned(result.sharding, _shape(root, number), reading.axes)
        answers = [as_planned(value, plan, axis) for axis in range(len(reading.axes))]
        if None in answers:
            undecided.append(result.path)
            open_axes.update(axis for axis, answer in enumerate(answers) if answer is None)
        for axis, answer in enumerate(answers):
            if answer is False:
                suspect = _of_result(reading, value.spreads[axis], plan.spreads[axis], axis, Cause(entry.name, made_by))
                key = (suspect.axis, suspect.cause.computation, suspect.cause.instruction.name)
                shown.setdefault(key, []).append(result.path)
                odd.setdefault(key, suspect)
    suspects: dict[tuple[str, str, str], Suspect] = {}
    for suspect in (*reading.suspects.values(), *odd.values()):
        suspects.setdefault((suspect.axis, suspect.cause.computation, suspect.cause.instruction.name), suspect)
    return (
        [_fault(reading.module, one, tuple(shown.get(key, ()))) for key, one in suspects.items()],
        undecided,
        open_axes,
    )


def _not_computed(
    reading: Reading,
    held: Sequence[Tree],
    parameters: Sequence[Placed],
    results: Sequence[Placed],
    computed: Sequence[bool],
) -> Iterator[StaticFault]:
    """Yield the results that are arguments as they came, although the step computes them."""
    entry = reading.module.computations[reading.module.entry]
    for number, (value, result, is_computed) in enumerate(zip(held, results, computed, strict=False)):
        made_by = _made_by(entry.instructions, entry.root, number)
        if is_computed and isinstance(value, Value) and value.parameter is not None and made_by is not None:
            came = parameters[value.parameter].path if value.parameter >= 0 else "a constant"
            words = f"is returned as it came ({came}), and the step computes it"
            suspect = Suspect("not computed", "", Cause(entry.name, made_by), Cause(entry.name, made_by), words)
            yield _fault(reading.module, suspect, (result.path,))


def _shape(root: Instruction | None, number: int) -> Any:
    assert root is not None
    return root.shapes[number]


def _made_by(instructions: Any, root: Instruction | None, number: int) -> Instruction | None:
    """Return the instruction that makes a result of the program."""
    if root is None or number >= len(root.shapes):
        return None
    if root.opcode == "tuple" and number < len(root.operands):
        return instructions.get(root.operands[number])
    return root


def _of_result(reading: Reading, held: Spread, plan: Spread, axis: int, made_by: Cause) -> Suspect:
    name = reading.axes[axis][0]
    kind: FaultKind = "part of another"
    cause = held.cause or made_by
    if held.kind == "partial":
        kind = "sum missing"
    elif plan.kind == "replicated" and held.kind == "varying":
        kind = "replicas differ"
    elif held.kind != "varying":
        cause = made_by
    words = f"is returned {in_words(held, name)}, and planned {in_words(plan, name)}"
    return Suspect(kind, name, cause, made_by, words)


def _fault(module: HloModule, suspect: Suspect, leaves: tuple[str, ...]) -> StaticFault:
    one = suspect.cause.instruction
    return StaticFault(
        suspect.kind, suspect.axis, f"{one.opcode} %{one.name}", _line(module, suspect), leaves, suspect.words
    )


def _line(module: HloModule, suspect: Suspect) -> SourceLine | None:
    """Return the user's line of the cause, or of where it shows if the compiler kept none."""
    for cause in (suspect.cause, suspect.place):
        if line := origin_of(module, cause.computation, cause.instruction).source:
            return line
    return next((one.frames[0] for one in (suspect.cause.instruction, suspect.place.instruction) if one.frames), None)
