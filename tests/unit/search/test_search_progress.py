"""What a search shows of its arithmetic, on a terminal and in a log."""

import io

from rich.console import Console
from tests.unit.search.pretend import screened

from outlay.search import search_progress
from outlay.search.search_progress import counting

CANDIDATES = [screened(f"layout{number}").candidate for number in range(3)]


def shown(*, is_terminal):
    """The candidates that come out, and what is shown of them."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100, highlight=False)
    return list(counting(CANDIDATES, "h100:1x8", console)), out.getvalue()


def test_the_arithmetic_is_counted_on_a_terminal():
    candidates, text = shown(is_terminal=True)
    assert candidates == CANDIDATES
    assert "arithmetic over 3 candidates for h100:1x8" in text


def test_a_log_gets_a_line_only_now_and_then(monkeypatch):
    assert shown(is_terminal=False) == (CANDIDATES, "")
    monkeypatch.setattr(search_progress, "_EVERY", -1.0)
    assert shown(is_terminal=False)[1].splitlines()[-1] == "arithmetic over 3 candidates for h100:1x8: 2 done"
