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


def peak_bytes(module: HloModule, stats: Any, *, is_cpu: bool = True) -> int:
    """The most that a device holds: arguments, outputs that are not in donated memory, temporaries and constants.

    The compiler's own peak is taken where it is less, as on TPUs, whose temporaries take turns in memory. Not on CPU,
    where it leaves temporaries out. What lies in the memory of the host is not the device's.

    Args:
        module: the program.
        stats: what `compiled.memory_analysis()` gives, where constants are part of nothing but the compiler's peak.
        is_cpu: whether it was compiled for CPU devices.
    """
    passed = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    on_host = _on_host_but_counted(module, stats)
    summed = passed + stats.temp_size_in_bytes + constant_bytes(module) - on_host
    own = getattr(stats, "peak_memory_in_bytes", 0) - on_host
    return summed if is_cpu or own <= 0 else min(own, summed)


def host_bytes(module: HloModule, stats: Any) -> int:
    """What of a program lies in the memory of the host: arguments, outputs not in donated memory, temporaries."""
    counted = stats.host_argument_size_in_bytes + stats.host_output_size_in_bytes - stats.host_alias_size_in_bytes
    return _on_host_but_counted(module, stats) + counted + stats.host_temp_size_in_bytes


def _on_host_but_counted(module: HloModule, stats: Any) -> int:
    """Arguments and outputs on the host that the compiler counts as the device's, as those of GPUs and CPUs do."""
    if stats.host_argument_size_in_bytes or stats.host_output_size_in_bytes:
        return 0
    entry = module.computations[module.entry]
    arguments = {int(one.value): one.shapes[:1] for one in entry.instructions.values() if one.opcode == "parameter"}
    donated = dict(module.input_output_alias)
    outputs = entry.root.shapes if entry.root else ()
    new = [shape for number, shape in enumerate(outputs) if (number,) not in donated]
    passed = [shape for shapes in arguments.values() for shape in shapes]
    return total_bytes(tuple(shape for shape in (*passed, *new) if shape.is_on_host))
