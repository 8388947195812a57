"""Compiler options with which a smaller program is compiled as the big one is: thresholds in bytes shrink, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.hlo_module import HloModule

_THRESHOLD = "threshold_bytes"
# Products of the same operand are joined to one while they are small.
_ALWAYS: Mapping[str, Mapping[str, Any]] = {"gpu": {"xla_gpu_dot_merger_threshold_mb": 0}}


def alike_options(
    options: Mapping[str, Any], platform: str, full: HloModule, small: HloModule, *, scale: bool
) -> dict[str, Any]:
    """Return options with which the exchanges of a smaller program are combined as in the big one.

    Args:
        options: what both were compiled with.
        platform: the kind of device.
        full: the big program, as compiled.
        small: the smaller one.
        scale: whether sizes of exchanges are to be scaled.
    """
    by = _smaller_by(full, small) if scale else Fraction(1)
    scaled = {
        name: max(int(value * by), 1) if name.endswith(_THRESHOLD) and isinstance(value, int) else value
        for name, value in options.items()
    }
    return {**scaled, **_ALWAYS.get(platform, {})}


def without_moving(options: Mapping[str, Any], kinds: Collection[str]) -> dict[str, Any]:
    """Return options that leave exchanges of these kinds in their round of a loop.

    What is small enough is moved behind the loop, where the big program has it inside.

    Examples:
        >>> without_moving({"xla_gpu_enable_pipelined_all_reduce": True}, ["all-reduce"])
        {'xla_gpu_enable_pipelined_all_reduce': False}
    """
    moving = {f"xla_gpu_enable_pipelined_{kind.replace('-', '_')}" for kind in kinds}
    return {name: False if name in moving else value for name, value in options.items()}


def _smaller_by(full: HloModule, small: HloModule) -> Fraction:
    """Return by what share the largest array that devices gather, or exchange otherwise, is smaller."""
    big, little = _largest(full), _largest(small)
    return Fraction(little, big) if 0 < little < big else Fraction(1)


def _largest(module: HloModule) -> int:
    """Return the bytes of the largest array that devices exchange in a loop, or elsewhere if no loop exchanges."""
    sizes: dict[bool, int] = {}
    for one in collectives_of(module):
        shapes = module.computations[one.computation].shapes(one.instruction.operands)
        largest = max((shape.num_bytes for shape in shapes), default=0)
        sizes[one.count > 1] = max(sizes.get(one.count > 1, 0), largest)
    return sizes.get(True) or sizes.get(False, 0)
