"""What a device must hold at once while a compiled program runs."""

from __future__ import annotations

from typing import Any

from outlay.analysis.hlo.dtypes import total_bytes
from outlay.analysis.hlo.hlo_module import HloModule


def constant_bytes(module: HloModule) -> int:
    """Bytes of the arrays that stand in a program's own text, such as those that a function closes over.

    They are there as long as the program is, and every device has them. A scalar takes part in an instruction.
    """
    return sum(
        total_bytes(one.shapes)
        for computation in module.computations.values()  # of loops and fusions, too
        for one in computation.instructions.values()
        if one.opcode == "constant" and any(shape.dims for shape in one.shapes)
    )


def peak_bytes(module: HloModule, stats: Any) -> int:
    """The most that a device holds: arguments, outputs that are not in donated memory, temporaries and constants.

    Not the compiler's own peak, which on CPU leaves temporaries out; on GPUs and TPUs it is the same.

    Args:
        module: the program.
        stats: what `compiled.memory_analysis()` gives, where constants are part of nothing but the compiler's peak.
    """
    passed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return passed + stats.temp_size_in_bytes + constant_bytes(module)
