"""Prove a program that is too big to compute here by the numbers of a smaller one of the same structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.structure import (
    Axes,
    Structure,
    StructureComparison,
    compare_structures,
    structure_of,
)
from outlay.analysis.verify.host import by_path
from outlay.analysis.verify.sampled.alike_options import alike_options, without_moving
from outlay.analysis.verify.sampled.sampled_verification import SampledVerification, Shrunk
from outlay.analysis.verify.stages import Stage
from outlay.analysis.verify.static.static_proof import of_text
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import text_with_constants
from outlay.core.quantities import counted, format_bytes
from outlay.program.program import Program


def verify_by_smaller(
    program: Program, small: Program, steps: int, tolerance: float | None, stage: Stage, key: Any, batches: Any
) -> SampledVerification:
    """Return the proof of a program by a smaller one.

    Args:
        program: the program; only its text is read.
        small: the smaller one, for the same kind of target, whose numbers are compared.
        steps: how many steps of the smaller one are compared.
        tolerance: as for `CompiledProof`.
        stage: is told what is done next.
        key: of the smaller program's state.
        batches: of the smaller program.
    """
    _check_alike(program, small)
    made_smaller = _shrinking_in_words(program, small)
    stage(f"made smaller: {made_smaller}")
    stage("compiling the program at full size")
    compiled = program.compiled
    module = parse_hlo(text_with_constants(compiled))
    stage("following its exchanges")
    static = of_text(program, compiled, module)
    small, comparison = _compiled_alike(program, module, small, stage)
    proof = CompiledProof(small, steps, tolerance, stage).of(key, batches)
    words = f"mode {program.mode} on {program.plan.mesh} as compiled for it"
    otherwise = tuple(_split_otherwise(program, small))
    shrunk = tuple(_shrunk(program, small))
    return SampledVerification(words, shrunk, comparison, proof, static, made_smaller, otherwise)


def _compiled_alike(
    program: Program, module: HloModule, small: Program, stage: Stage
) -> tuple[Program, StructureComparison]:
    """Compile the smaller program so that the compiler makes the same of it, if options can do that."""
    full = structure_of(module, _axes(program))
    stage("compiling the smaller program")
    platform = program.mesh.devices.flat[0].platform
    text = parse_hlo(text_with_constants(small.compiled))
    best = small, _compared(full, text, small)
    if full.order == structure_of(text, _axes(small)).order:
        return best
    options = small.compiler_options
    asked = alike_options(options.values, platform, module, text, scale=options.is_preset)
    while asked != dict(options.values):
        stage("compiling the smaller program with thresholds that are as much smaller")
        again = small.with_compiler_options(asked)
        comparison = _compared(full, parse_hlo(text_with_constants(again.compiled)), again)
        if len(comparison.differences) < len(best[1].differences) or comparison.agrees:
            best = again, comparison
        asked, before = without_moving(asked, comparison.kinds), asked
        if comparison.agrees or asked == before:
            break
    return best


def _compared(full: Structure, text: HloModule, small: Program) -> StructureComparison:
    return compare_structures(full, structure_of(text, _axes(small)))


def _axes(program: Program) -> Axes:
    return tuple((str(name), program.mesh.shape[name]) for name in program.mesh.axis_names)


def _check_alike(program: Program, small: Program) -> None:
    """Raise if two programs cannot have the same structure, whatever the compiler makes of them.

    Raises:
        ProgramError: the names of their axes or their trees differ, or they are for other hardware.
    """
    problems = []
    if program.mesh.axis_names != small.mesh.axis_names:
        problems.append(f"axes {small.mesh.axis_names}, and the program has {program.mesh.axis_names}")
    kinds = [one.mesh.devices.flat[0].device_kind for one in (program, small)]
    if kinds[0] != kinds[1]:
        problems.append(f"devices {kinds[1]}, and the program is for {kinds[0]}")
    for what, full_tree, small_tree in (
        ("state", program.state_shapes, small.state_shapes),
        ("batch", program.batch_shapes, small.batch_shapes),
    ):
        apart = sorted(set(by_path(full_tree)) ^ set(by_path(small_tree)))
        if apart:
            problems.append(f"a {what} with other leaves: {counted(len(apart), 'leaf', 'leaves')}, first {apart[0]!r}")
    if problems:
        raise ProgramError(
            "\n  ".join(["the smaller program is not like the program; it has", *problems])
            + "\n  fix: the same step, layout and axes, with smaller sizes"
        )


def _leaves(program: Program) -> Mapping[str, Any]:
    return {**by_path(program.state_shapes), **by_path(program.batch_shapes, "batch")}


def _shrunk(program: Program, small: Program) -> Iterator[Shrunk]:
    """Yield what became smaller; of several arrays of the same shapes the first alone."""
    seen = set()
    less = _leaves(small)
    for path, leaf in _leaves(program).items():
        shapes = leaf.shape, less[path].shape
        if shapes[0] != shapes[1] and shapes not in seen:
            seen.add(shapes)
            yield Shrunk(path, *shapes)


def _split_otherwise(program: Program, small: Program) -> Iterator[str]:
    less = {leaf.path: leaf for leaf in small.plan}
    for leaf in program.plan:
        other = less.get(leaf.path)
        if other is not None and leaf.kind != "intermediate" and leaf.spec != other.spec:
            yield f"{leaf.path} is {leaf.spec} in the full program, {other.spec} in the small one"


def _shrinking_in_words(program: Program, small: Program) -> str:
    sizes = [format_bytes(one.plan.bytes_total) for one in (program, small)]
    meshes = [str(one.plan.mesh) for one in (program, small)]
    mesh = f", {meshes[0]} -> {meshes[1]}" if meshes[0] != meshes[1] else ""
    return f"state {sizes[0]} -> {sizes[1]}{mesh}"
