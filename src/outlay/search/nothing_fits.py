"""The errors of a search that has nothing to choose: what came nearest, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outlay.core.errors import ChooseError
from outlay.core.sizes import format_bytes
from outlay.meshes.target import Target
from outlay.search.screen import RuledOut
from outlay.search.selection import Considered

_MAX_LINES = 12


def nothing_to_compile(target: Target, ruled_out: Sequence[RuledOut]) -> ChooseError:
    """The error where arithmetic rules out every candidate."""
    if not ruled_out:
        return ChooseError(
            f"there is nothing to try on {target}: its {target.num_devices} device(s) make no mesh that a layout names"
            "\n  cure: name a mesh, such as --mesh data=-1, or other layouts with --layout"
        )
    examples = {each.why: each.candidate for each in reversed(ruled_out)}
    reasons = Counter(each.why for each in ruled_out).most_common()
    lines = [f"  {count} x {why}\n    such as {examples[why]}" for why, count in reasons[:_MAX_LINES]]
    if len(reasons) > _MAX_LINES:
        lines.append(f"  and {len(reasons) - _MAX_LINES} more reasons")
    head = f"none of {len(ruled_out)} candidates can run on {target}, by arithmetic alone:"
    return ChooseError("\n".join([head, *lines, f"  cure: {_cures(target)}"]))


def nothing_fits(target: Target, tried: Sequence[Considered], num_left: int) -> ChooseError:
    """The error where nothing that was compiled can run.

    Args:
        target: the hardware.
        tried: what was compiled, nearest to fitting first.
        num_left: how many candidates had no turn.
    """
    memory = target.hardware.memory_bytes
    head = (
        f"none of the {len(tried)} candidates that were compiled can run on {target} ({format_bytes(memory)} a device)"
    )
    lines = [f"  {each.candidate}: {each.verdict}: {_indented(each.why)}" for each in tried[:_MAX_LINES]]
    if len(tried) > _MAX_LINES:
        lines.append(f"  and {len(tried) - _MAX_LINES} more")
    nearest = tried[0].price
    if nearest:
        lines.append(
            f"  nearest: {tried[0].candidate}, {format_bytes(nearest.peak_bytes - nearest.capacity)} a device too much"
        )
    cures = [_cures(target)] if nearest else []
    if num_left:
        cures.append(f"compile more of the {num_left} that had no turn: --candidates {len(tried) + num_left}")
    if any(each.verdict == "timed out" for each in tried):
        cures.append("give each more time: --timeout")
    if any(each.verdict == "failed" for each in tried):
        cures.append("see where it fails: outlay explain, with the layout and mesh of a candidate that failed")
    return ChooseError("\n".join([head, *lines, *(f"  cure: {cure}" for cure in cures)]))


def _cures(target: Target) -> str:
    return (
        f"more devices than {target.num_devices}, a smaller batch, more microbatches (accumulate), recomputing layers "
        "(remat), or a layout that splits more"
    )


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
