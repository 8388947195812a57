import io

import pytest
from rich.console import Console

from outlay.jobs import supervise as job_progress
from outlay.jobs.job_folder import Beat
from outlay.jobs.supervise import JobProgress, slowest


@pytest.fixture(autouse=True)
def at_any_time(monkeypatch):
    monkeypatch.setattr(job_progress, "_EVERY", 0)


def shown(beats, seconds_a_step, *, is_terminal=True):
    text = io.StringIO()
    with JobProgress(Console(file=text, force_terminal=is_terminal, width=200, color_system=None)) as progress:
        progress.show(beats, seconds_a_step)
    return text.getvalue()


def test_one_line_for_all_processes():
    beats = {0: Beat(12, 1.0, "step 13", 100), 1: Beat(10, 1.0, "step 11", 100), 2: None}
    text = shown(beats, 0.25)
    assert "step 10/100" in text
    assert "0.25 s a step, slowest: process 1, step 11, 2 behind" in text


def test_before_the_first_step_it_says_what_goes_on():
    text = shown({0: Beat(None, 1.0, "compiling"), 1: Beat(None, 2.0, "joining")}, None)
    assert "step 0/?" in text
    assert "slowest: process 1, joining" in text
    assert "behind" not in text


def test_nothing_is_shown_where_there_is_no_terminal():
    assert shown({0: Beat(1, 1.0, "step 2", 10)}, 1.0, is_terminal=False) == ""


def test_of_processes_at_one_step_the_last_to_come_there_is_the_slowest():
    assert slowest({0: Beat(5, 10.0, "step 6"), 1: Beat(5, 10.2, "step 6"), 2: Beat(6, 10.3, "step 7")}) == 1
