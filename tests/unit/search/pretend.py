"""Values to search among, made up."""

from outlay.search.analytic_cost import Expectation
from outlay.search.candidate import Candidate
from outlay.search.compiled_price import Price
from outlay.search.screening import Screened
from outlay.search.search import answered
from outlay.search.selection import Considered
from outlay.search.workers import Ended

GIB = 2**30


def price(seconds: float = 1.0, *, peak: float = 10, **changes) -> Price:
    """A price of so many seconds, whose peak is so many GiB of 80."""
    known = {
        "seconds": seconds,
        "seconds_low": seconds / 2,
        "seconds_high": seconds * 2,
        "parts": {"products": seconds / 2, "memory": 0.0, "communication": seconds / 2, "overhead": 0.0},
        "peak_bytes": int(peak * GIB),
        "capacity": 80 * GIB,
        "fits": peak <= 80,
        "room": 60 * GIB,
        "flops": 1e12,
        "bytes_by_axes": {"data": GIB},
        "seconds_by_axes": {"data": seconds / 2},
        "crossing": ("data",),
        "num_findings": 0,
        "compile_seconds": 3.0,
    }
    return Price(**{**known, **changes})


def screened(
    layout: str, seconds: float = 1.0, gib: float = 10, mesh: str = "data=8", num_samples: int = 8
) -> Screened:
    """A candidate of which so much is expected."""
    return Screened(Candidate(layout, mesh), Expectation(seconds, int(gib * GIB), num_samples))


def compiled(
    screened: Screened, price: Price | None, failure: str = "", *, timed_out: bool = False, was_kept: bool = False
) -> Considered:
    """A candidate with what a process has reported about it."""
    answer = {"price": price.to_dict(), "was_kept": was_kept} if price else None
    return answered(screened, Ended(answer, failure, timed_out, 1.0))
