"""Time two ways of doing the same thing in one run, turn by turn, so that the machine's drift cancels in the ratio."""

import statistics
import time
from collections.abc import Callable


def compare(
    ours: Callable[[], None], theirs: Callable[[], None], *, rounds: int, calls: int
) -> tuple[float, float, float]:
    """Median seconds a call of each, and the median of the ratios ours / theirs over the rounds.

    Each round times `calls` calls of one, then of the other, and the order alternates from round to round.
    """
    mine, other, ratios = [], [], []
    for round_number in range(rounds):
        pair = [(ours, mine), (theirs, other)]
        for function, times in pair if round_number % 2 else reversed(pair):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times.append((time.perf_counter() - start) / calls)
        ratios.append(mine[-1] / other[-1])
    return statistics.median(mine), statistics.median(other), statistics.median(ratios)


def report(what: str, ours: float, theirs: float, ratio: float, bar: float) -> None:
    """One line: both medians in microseconds, the ratio, and the bar it is held to."""
    verdict = "within" if ratio <= bar else "ABOVE"
    times = f"outlay {ours * 1e6:.0f} us, by hand {theirs * 1e6:.0f} us"
    print(f"{what}: {times}, ratio {ratio:.3f} ({verdict} the bar of {bar})")
