"""Find work that costs more than it must: repeated, attention without a fused kernel, or in more bits than asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outlay.analysis.attribution.provenance import read_op_name, user_line
from outlay.analysis.findings.communication import at
from outlay.analysis.findings.finding import RATIO, Evidence, Finding
from outlay.analysis.hlo.hlo_module import Instruction, SourceLine, total_bytes
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.opcodes import CONTROL, NAMES
from outlay.analysis.work.compiled import compiled_work
from outlay.analysis.work.products import flops_of_product
from outlay.core.quantities import format_bytes, listed
from outlay.core.source_owner import is_below
from outlay.devices.mesh_info import MeshInfo
from outlay.models.attention import kernel_rules
from outlay.models.attention.kernel_rules import Refusal

_WRITES_NOTHING = NAMES | CONTROL | {"constant"}
_OWN = str(Path(kernel_rules.__file__).parent)


def repeated_work(evidence: Evidence) -> Iterator[Finding]:
    """Find programs in which one device computes much more than its share of the traced step."""
    work, mesh = evidence.work, evidence.mesh
    ratio = evidence.repetition
    if ratio < RATIO or mesh is None:
        return
    text = (
        f"a device computes {work.flops_compiled:.3g} FLOPs a step, {ratio:.1f} times its share of {work.flops:.3g}: "
        f"up to {min(ratio, mesh.num_devices):.0f} of {mesh.num_devices} devices repeat one another's work"
    )
    fix = _spread_work(evidence, mesh)
    if evidence.program is not None and evidence.program.has_manual_collectives:
        fix = (
            "split the batch over every axis of the mesh: in mode manual devices along any other axis take the same "
            'samples and compute the same; or use mode="auto", which splits the products'
        )
    seconds = None if evidence.computing is None else evidence.computing * (1 - 1 / ratio)
    yield Finding("repeated-work", text, fix, int(work.bytes_accessed * (1 - 1 / ratio)), seconds=seconds)


def _spread_work(evidence: Evidence, mesh: MeshInfo) -> str:
    """Write the fix for repeated work: the axes that split nothing yet, or else the line with most of the work."""
    program = evidence.program
    used = {axis for leaf in program.plan for axes in leaf.dims for axis in axes} if program else set()
    free = [axis for axis, size in mesh.axis_sizes.items() if size > 1 and axis not in used]
    batch = program.plan.of_kind("batch") if program else ()
    if not program or (free and batch):
        over = "every axis that splits no parameter" if not program else "+".join(free)
        return (
            f"split the batch over {over} (data_parallel), and constrain the activations of the layers whose "
            "collectives are named above"
        )
    largest = max(_counted(evidence), key=lambda pair: pair[0], default=(0.0, None))[1]
    name = read_op_name(largest.op_name) if largest is not None else None
    what = f"{name.primitive}{at(user_line(largest.frames))}" if largest is not None and name else "the largest product"
    return (
        f"split the operands of {what}, the most of what a device computes, outlay.constrain(x, P(...)), along dims "
        "over which it is independent; where it has none, as one factorization of one matrix has not, every device "
        "computes it"
    )


def _counted(evidence: Evidence) -> Iterator[tuple[float, Instruction]]:
    """Yield what computes products or factorizations, with its FLOPs in a step."""
    for name, (runs, _) in runs_per_step(evidence.module).items():
        computation = evidence.module.computations[name]
        for one in computation.instructions.values():
            inside = evidence.module.fused(one) or None
            parts = inside.instructions.values() if inside else (one,)
            for part in parts:
                flops = flops_of_product(part, (inside or computation).shapes(part.operands))
                if flops:
                    yield flops * runs, part


def unfused_attention(evidence: Evidence) -> Iterator[Finding]:
    """Find attention that is computed block by block on hardware with a fused kernel, and the rule that refused it."""
    if evidence.kind == "cpu":
        return
    written: dict[Refusal, dict[SourceLine | None, int]] = {}
    for name, (runs, _) in runs_per_step(evidence.module).items():
        for one in evidence.module.computations[name].instructions.values():
            refused = Refusal.of_scope(one.op_name)
            if refused is not None and one.opcode not in _WRITES_NOTHING:
                by_line, line = written.setdefault(refused, {}), _caller(one)
                by_line[line] = by_line.get(line, 0) + runs * total_bytes(one.shapes)
    for refused, by_line in written.items():
        num_bytes = sum(by_line.values())
        text = (
            f"attention goes block by block, and writes {format_bytes(num_bytes)} a step that a fused kernel keeps on "
            f"the chip: {refused.why}"
        )
        known = {line: size for line, size in by_line.items() if line is not None}
        source = max(known, key=lambda line: known[line], default=None)
        yield Finding("unfused-attention", text, refused.fix, num_bytes, source)


def _caller(one: Instruction) -> SourceLine | None:
    """Return the user's line that asked for attention, rather than a line of the attention itself."""
    own = [number for number, frame in enumerate(one.frames) if is_below(frame.file, _OWN)]
    return user_line(one.frames[own[-1] + 1 :] if own else one.frames)


def not_in_fp8(evidence: Evidence) -> Iterator[Finding]:
    """Find products that rules ask for in FP8 and that are compiled otherwise; simulated devices emulate FP8."""
    program, target = evidence.program, evidence.target
    if program is None or not program.fp8:
        return
    asked, *more = program.fp8.split("\n")
    beyond: dict[str, list[str]] = {}
    for line in more:
        if line.startswith("as it was, in "):
            what, _, at = line.removeprefix("as it was, in ").partition(": ")
            beyond.setdefault(what, []).append(at)
    for what, lines in beyond.items():
        who, fix = what, "name only what is multiplied by @, jnp.einsum or a dense layer in the rule"
        if what == "a function of its own":
            who = "what a function with a derivative of its own multiplies"
            fix = "write the function without jax.custom_vjp, or name only what is multiplied outside of it in the rule"
        text = f"the layout asks for {asked}, and {who} stays in the model's dtype: {listed(lines)}"
        yield Finding("not-in-fp8", text, fix, 0)
    if target is None or target.hardware.kind == "cpu":
        return
    if "float8" not in target.hardware.peak_flops:
        text = (
            f"the layout asks for {asked}, and {target.hardware.name} has no such products: they are compiled and "
            "priced in the model's dtype, so FP8 makes nothing faster"
        )
        fix = "leave the rule for FP8 out (outlay.layout.fp8, --precision), or take a target that has it, such as h100"
        yield Finding("not-in-fp8", text, fix, 0)
    elif not compiled_work(evidence.module).flops_by_dtype.get("float8"):
        text = (
            f"the layout asks for {asked}, and no product of the compiled program takes 8 bits: they are priced in the "
            "model's dtype"
        )
        fix = 'scaling="current" (--precision fp8): XLA has no product whose scales differ from block to block'
        if "blockwise" not in asked:
            fix = "dims that are multiples of 16, since others are computed in 16 bits; or leave the rule out"
        yield Finding("not-in-fp8", text, fix, 0)
