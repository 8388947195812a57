"""The example of an FFT by pencils, as a user runs it; over two processes it runs in tests/multiprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pencil_fft.py"


@pytest.mark.processes
def test_the_example_agrees_with_numpy() -> None:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, EXAMPLE], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "P(None, 'a', 'b'): split in 8" in done.stdout
    assert float(done.stdout.split()[-1]) < 1e-5
