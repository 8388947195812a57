"""What real processes write, and how the launcher shows it."""

import os
import pty
import re
import threading

import pytest
from tests.multiprocess import jobs
from tests.multiprocess.program import NUM_STEPS


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "mark"


def test_lines_are_in_order_of_steps_and_on_a_terminal_there_is_one_display_for_all(mark):
    terminal, of_job = pty.openpty()
    shown: list[bytes] = []

    def read():
        try:
            while piece := os.read(terminal, 1 << 16):
                shown.append(piece)
        except OSError:  # nobody has the other end any more
            return

    reader = threading.Thread(target=read)
    reader.start()
    job = jobs.start(
        "--in-order", fault="talk", mark=mark, stderr=of_job, environment={"COLUMNS": "120", "TERM": "xterm"}
    )
    os.close(of_job)
    stdout, _ = job.communicate(timeout=jobs.LONGEST)
    reader.join(jobs.LONGEST)
    os.close(terminal)
    text = b"".join(shown).decode()
    assert job.returncode == 0, text
    assert re.search(rf"step \d/{NUM_STEPS} .* s a step, slowest: process 1, step \d", text), text
    assert "takes step" not in text
    steps = [f"[{process}] takes step {step}" for step in range(1, NUM_STEPS + 1) for process in (0, 1)]
    ends = [f"[{process}] process {process} of 2: total 2.0, restart 0" for process in (0, 1)]
    assert stdout.splitlines() == [*steps, *ends]
