"""Whether this machine has room for a proof by numbers of a program for hardware that is not here."""

from __future__ import annotations

import jax

from outlay.arrays.init_sharded import host_memory
from outlay.core.quantities import counted, format_bytes
from outlay.program.program import Program

MOST_DEVICES = 32
"""How many devices are simulated at most: each exchange gathers from all of them."""

# Of each step the proof holds the state before it, what one device makes of it, and that of three moved starts; the
# process that computes the compiled program holds it again, whole and on its devices.
_OF_STEP, _APART = 6, 4
_SHARE = 0.8  # of the memory: others need some of it as well


def why_no_room(program: Program, steps: int) -> str:
    """Say why the numbers of a program cannot be computed here; empty if they can.

    Activations are not counted, which are known only once the program is compiled: see `why_no_room_for_a_step`.
    """
    if program.mesh.size > MOST_DEVICES:
        return f"it is for {program.mesh.size} devices, and {MOST_DEVICES} are simulated here at most"
    memory = host_memory()
    copies = max(program.mesh.size * _held_on_one(program), 1.0)
    needed = program.plan.bytes_total * (_OF_STEP * steps + _APART * copies)
    if memory is None or needed <= _SHARE * memory:
        return ""
    return (
        f"its state of {format_bytes(program.plan.bytes_total)} is held about {needed / program.plan.bytes_total:.0f} "
        f"times by a proof of {counted(steps, 'step')}, which makes {format_bytes(needed)}, and this machine has "
        f"{format_bytes(memory)}"
    )


def why_no_room_for_a_step(program: Program, compiled: jax.stages.Compiled) -> str:
    """Say why what a step computes in between has no room here; empty if it has, or if the compiler does not tell.

    Args:
        program: the program.
        compiled: what its compiler made of it.
    """
    memory, stats = host_memory(), compiled.memory_analysis()
    each = 0 if stats is None else stats.temp_size_in_bytes
    needed = program.mesh.size * each
    if memory is None or needed <= _SHARE * memory:
        return ""
    return (
        f"a step holds up to {format_bytes(each)} of activations and other values in between on "
        f"each of {program.mesh.size} devices, which makes {format_bytes(needed)}, and this machine has "
        f"{format_bytes(memory)}"
    )


def _held_on_one(program: Program) -> float:
    """Return which share of the state a device holds."""
    each = program.plan.bytes_per_device
    return max(each.values(), default=0) / max(program.plan.bytes_total, 1)


HOW_TO_SHRINK = (
    "outlay.verify(program, like=small) (outlay verify --size small) judges it by a smaller program of the same "
    "structure, and static=True (--static) follows its exchanges at full size"
)
