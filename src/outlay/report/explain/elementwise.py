"""Whether an instruction needs its operands where they are."""

from __future__ import annotations

import re

from outlay.report.hlo.module import HloModule, Instruction

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
