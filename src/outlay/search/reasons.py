"""Say why a candidate lost, in words with numbers."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from outlay.core.error_types import ChooseError
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.devices.target import Target
from outlay.search.analytic_cost import Expectation
from outlay.search.compiled_price import Price
from outlay.search.selection import Considered

_ALIKE = 0.05
"""Times that differ by less than this share are a tie: about the estimate's own mean error."""


def is_tie(one: Price, other: Price) -> bool:
    """Return whether the estimates cannot tell which is faster."""
    return abs(one.seconds - other.seconds) <= _ALIKE * min(one.seconds, other.seconds)


def among_ties(one: Price, fastest: Price) -> tuple[bool, float, float]:
    """Return by what candidates are ordered that are as fast, as far as anybody knows.

    What fits into the memory that JAX takes comes first, and of that what waits least for exchanges: where they
    overlap, a slower network costs less. Where memory is scarce, more of it left is worth more.
    """
    is_scarce = one.peak_bytes > one.room
    waiting = 0.0 if is_scarce else round(_waiting(one) / (fastest.seconds or 1.0), 2)
    return is_scarce, waiting, float(one.peak_bytes)


def _waiting(price: Price) -> float:
    return price.parts.get("communication", 0.0)


def why_chosen(chosen: Price, fastest: Price) -> str:
    """Say why a candidate is chosen."""
    if chosen.seconds <= fastest.seconds:
        return "the fastest that fits"
    if chosen.peak_bytes > chosen.room or _waiting(chosen) >= _waiting(fastest):
        return "as fast as the fastest, as far as an estimate knows, with the least memory"
    return "as fast as the fastest, as far as an estimate knows, and more of what it sends overlaps"


def why_slower(loser: Price, winner: Price) -> str:
    """Say what makes a candidate slower that fits."""
    if is_tie(loser, winner):
        first, second = among_ties(loser, winner), among_ties(winner, winner)
        against = f"{format_bytes(loser.peak_bytes)} of memory against {format_bytes(winner.peak_bytes)}"
        if first[0] == second[0] and first[1] != second[1]:
            waits = f"{format_seconds(_waiting(loser))} of waiting for exchanges"
            against = f"{waits} against {format_seconds(_waiting(winner))}"
        return f"as fast, as far as an estimate knows, with {against}"
    # Not its largest part, but the one by which it loses most.
    part = max(loser.parts, key=lambda name: loser.parts[name] - winner.parts.get(name, 0.0))
    reasons = {"communication": _communication, "products": _compute, "kernels": _compute}
    reason = reasons.get(part, _other)(loser, winner, part)
    return f"{_times(loser.seconds, winner.seconds)} the time: {reason}"


def why_too_big(price: Price) -> str:
    """Say what the compiler found for a program that does not fit."""
    beside = ", beside what the runtime takes," if price.peak_bytes <= price.capacity else ""
    return f"needs {format_bytes(price.peak_bytes)}{beside} of {format_bytes(price.capacity)} a device"


def why_not_compiled(expected: Expectation, capacity: int) -> str:
    """Say why the arithmetic ranked a candidate too low to be compiled."""
    what = f"the arithmetic expects {format_seconds(expected.seconds)} and {format_bytes(expected.num_bytes)} a device"
    if expected.num_bytes > capacity:
        return f"ranked below: {what}, of {format_bytes(capacity)}"
    return f"ranked below: {what}"


def _communication(loser: Price, winner: Price, part: str) -> str:
    more = {axes: spent - winner.seconds_by_axes.get(axes, 0.0) for axes, spent in loser.seconds_by_axes.items()}
    axes = max(more, key=lambda name: more[name], default="")
    sent, less = loser.bytes_by_axes.get(axes, 0), winner.bytes_by_axes.get(axes, 0)
    if sent <= less:  # the same amount, in more or slower exchanges
        return _other(loser, winner, part)
    where = f"over {axes}" if axes else "between devices"
    where += " between hosts" if axes in loser.crossing else ""
    if not less:
        in_all = sum(loser.bytes_by_axes.values()) - sum(winner.bytes_by_axes.values())
        if in_all < sent / 2:  # the same, over axes of another name
            return _other(loser, winner, part)
        return f"moves {format_bytes(sent)} {where}, where the first moves nothing"
    return f"moves {_times(sent, less)} the bytes {where} ({format_bytes(sent)} against {format_bytes(less)})"


def _compute(loser: Price, winner: Price, part: str) -> str:
    if loser.flops <= winner.flops or not winner.flops:
        return _other(loser, winner, part)
    work = f"{format_flops(loser.flops)} against {format_flops(winner.flops)}"
    return f"computes {_times(loser.flops, winner.flops)} as much on each device ({work})"


def _other(loser: Price, winner: Price, part: str) -> str:
    what = {
        "communication": "waiting for collectives",
        "products": "in matrix products",
        "kernels": "in kernels",
        "memory": "moving data in memory",
    }
    times = f"{format_seconds(loser.parts[part])} against {format_seconds(winner.parts.get(part, 0.0))}"
    return f"spends {times} {what.get(part, f'on {part}')}"


def _times(more: float, less: float) -> str:
    ratio = more / less
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"


_MAX_LINES = 12


def nothing_to_compile(target: Target, ruled_out: Sequence[Considered]) -> ChooseError:
    """Return the error for a search in which arithmetic rules out every candidate."""
    if not ruled_out:
        return ChooseError(
            f"there is nothing to try on {target}: its {counted(target.num_devices, 'device')} form no mesh "
            "for the axes of any layout"
            "\n  fix: name a mesh, such as --mesh data=-1, or other layouts with --layout"
        )
    examples = {each.why: each.candidate for each in reversed(ruled_out)}
    reasons = Counter(each.why for each in ruled_out).most_common()
    lines = [f"  {count} x {why}\n    such as {examples[why]}" for why, count in reasons[:_MAX_LINES]]
    if len(reasons) > _MAX_LINES:
        lines.append(f"  and {len(reasons) - _MAX_LINES} more reasons")
    head = f"none of {len(ruled_out)} candidates can run on {target}, by arithmetic alone:"
    return ChooseError("\n".join([head, *lines, f"  fix: {_fixes(target)}"]))


def nothing_fits(
    target: Target, tried: Sequence[Considered], num_left: int, ways: Sequence[object] = ()
) -> ChooseError:
    """Return the error for a search in which nothing that was compiled can run.

    Args:
        target: the hardware.
        tried: what was compiled, nearest to fitting first.
        num_left: how many candidates were not compiled.
        ways: changes of the nearest candidate that should fit, by arithmetic.
    """
    memory = target.hardware.memory_bytes
    head = (
        f"none of the {len(tried)} candidates that were compiled can run on {target} ({format_bytes(memory)} a device)"
    )
    lines = [
        textwrap.indent(f"{each.candidate}: {each.verdict}: {each.why}", "    ").removeprefix("  ")
        for each in tried[:_MAX_LINES]
    ]
    if len(tried) > _MAX_LINES:
        lines.append(f"  and {len(tried) - _MAX_LINES} more")
    nearest = tried[0].price
    if nearest:
        lines.append(
            f"  nearest: {tried[0].candidate}, {format_bytes(nearest.peak_bytes - nearest.capacity)} a device too much"
        )
    fixes = [f"what should fit, by arithmetic: {way}" for way in ways]
    if nearest and not ways:
        fixes.append(_fixes(target))
    if num_left:
        fixes.append(f"compile more of the {num_left} that had no turn: --num-candidates {len(tried) + num_left}")
    if any(each.verdict == "timed out" for each in tried):
        fixes.append("give each more time: --timeout")
    if any(each.verdict == "failed" for each in tried):
        fixes.append("see where it fails: outlay explain, with the layout and mesh of a candidate that failed")
    return ChooseError("\n".join([head, *lines, *(f"  fix: {fix}" for fix in fixes)]))


def _fixes(target: Target) -> str:
    return (
        f"more devices than {target.num_devices}, a smaller batch, more microbatches (accumulate), recomputing layers "
        "(remat), or a layout that splits more"
    )
