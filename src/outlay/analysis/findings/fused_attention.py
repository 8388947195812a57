"""Attention that no fused kernel does: which rule refused it, and the edit with which there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outlay.analysis.attribution.who_asked import user_line
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.dtypes import total_bytes
from outlay.analysis.hlo.hlo_module import Instruction, SourceLine
from outlay.analysis.hlo.loops import runs_per_step
from outlay.core.quantities import format_bytes
from outlay.models.attention import kernel_rules
from outlay.models.attention.kernel_rules import Refusal

_WRITES_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call")
_OWN = str(Path(kernel_rules.__file__).parent)


def unfused_attention(evidence: Evidence) -> Iterator[Finding]:
    """Attention that goes block by block on hardware with a fused kernel, by the rule that refused it."""
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
    """The user's line that asked for attention, rather than a line of the attention itself."""
    own = [number for number, frame in enumerate(one.frames) if frame.file.startswith(_OWN)]
    return user_line(one.frames[own[-1] + 1 :] if own else one.frames)
