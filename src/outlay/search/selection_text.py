"""A selection as text: the answer, a line for each candidate that was compiled, and the others by their reasons."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from outlay.analysis.cost.estimate import Range, format_range
from outlay.core.quantities import format_bytes, format_seconds
from outlay.core.table import table
from outlay.search.candidate_price import Price

if TYPE_CHECKING:
    from outlay.search.selection import Considered, Selection

COLUMNS = ("layout", "mesh", "options", "a step", "an example", "memory", "")
_RIGHT = ("a step", "an example", "memory")
MAX_REASONS = 12


def lines(selection: Selection) -> Group:
    """A selection as rich renderables."""
    shown: list[Any] = [Text(headline(selection), style="bold green"), Text()]
    tried = [each for each in selection if each.verdict not in ("not compiled", "ruled out")]
    columns = [column for column in COLUMNS if column != "an example" or selection.is_per_sample]
    rows = [_row(each) for each in tried]
    shown.append(table(columns, [[row[column] for column in columns] for row in rows], right=_RIGHT))
    shown += _left_out(selection, "not compiled", "ranked below by the arithmetic, not compiled")
    shown += _left_out(selection, "ruled out", "ruled out by the arithmetic")
    shown += [Text(f"note: {note}", style="yellow") for note in notes(selection)]
    return Group(*shown)


def headline(selection: Selection) -> str:
    """The answer in a sentence."""
    chosen = selection.chosen
    assert chosen.price is not None
    memory = f"{format_bytes(chosen.price.peak_bytes)} of {format_bytes(chosen.price.capacity)} a device"
    return f"{selection.target}: {chosen.candidate}, about {step_time(chosen.price)} a step, {memory}"


def notes(selection: Selection) -> list[str]:
    """What limits the answer."""
    first = selection.chosen.price_per_sample
    slower = (each.price_per_sample for each in selection.compiled[1:] if each.verdict == "slower")
    near = [price for price in slower if first and price and price.seconds_low < first.seconds_high]
    found = []
    if near:
        found.append(
            f"the ranges of {len(near)} slower one{'s' if len(near) > 1 else ''} overlap that of the first: "
            "an estimate ranks, a measurement decides"
        )
    if selection.is_per_sample:
        found.append("batches differ, so times of an example are compared")
    kept = sum(each.was_kept for each in selection)
    if kept:
        found.append(f"{kept} of {len(selection.compiled)} compiled programs were kept from an earlier search")
    return found


def step_time(price: Price) -> str:
    """The estimated range of a step."""
    return format_range(Range(price.seconds_low, price.seconds_high)) if price.parts else ""


def _row(each: Considered) -> dict[str, str]:
    price, one, candidate = each.price, each.price_per_sample, each.candidate
    # How much slower says that it is slower.
    verdict = each.why if each.verdict == "slower" else f"{each.verdict}: {each.why}"
    return {
        "layout": candidate.layout,
        "mesh": candidate.mesh,
        "options": " ".join(candidate.all_words),
        "a step": step_time(price) if price else "",
        "an example": format_seconds(one.seconds) if one else "",
        "memory": format_bytes(price.peak_bytes) if price else "",
        "": verdict,
    }


def _left_out(selection: Selection, verdict: str, what: str) -> list[Text]:
    """How many had no turn, and the reasons, the most frequent first."""
    them = [each for each in selection if each.verdict == verdict]
    if not them:
        return []
    if verdict == "not compiled":
        return [Text(), Text(f"{len(them)} {what}; the next would be {them[0].candidate} ({them[0].why})")]
    reasons = Counter(each.why for each in them).most_common()
    shown = [Text(f"  {count} x {why}") for why, count in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        shown.append(Text(f"  and {len(reasons) - MAX_REASONS} more reasons"))
    return [Text(), Text(f"{len(them)} {what}:"), *shown]
