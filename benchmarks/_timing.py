"""Time two ways of doing the same thing in one run, turn by turn, so that the machine's drift cancels in the ratio."""

import statistics
import time
from collections.abc import Callable


def compare(
    tested: Callable[[], None], reference: Callable[[], None], *, rounds: int, calls: int
) -> tuple[float, float, float]:
    """Return the median seconds per call of both, and the median over the rounds of the ratio tested / reference.

    Each round times `calls` calls of one, then of the other, and the order alternates from round to round.
    """
    tested_times, reference_times, ratios = [], [], []
    for round_number in range(rounds):
        pair = [(tested, tested_times), (reference, reference_times)]
        for function, times in pair if round_number % 2 else reversed(pair):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times.append((time.perf_counter() - start) / calls)
        ratios.append(tested_times[-1] / reference_times[-1])
    return statistics.median(tested_times), statistics.median(reference_times), statistics.median(ratios)


def report(what: str, tested: float, reference: float, ratio: float, bar: float) -> None:
    """Print one line: both medians in microseconds, their ratio, and its bar."""
    verdict = "within" if ratio <= bar else "ABOVE"
    times = f"outlay {tested * 1e6:.0f} us, by hand {reference * 1e6:.0f} us"
    print(f"{what}: {times}, ratio {ratio:.3f} ({verdict} the bar of {bar})")
