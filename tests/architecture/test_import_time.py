"""`import outlay` and `outlay --help` answer at once: neither loads jax, which alone takes about a second."""

import os
import subprocess
import sys

import pytest

HEAVY = ("flax", "grain", "jax", "jaxlib", "matplotlib", "numpy", "optax", "scipy", "sklearn")
IMPORT_OUTLAY = "import outlay"
SHOW_HELP = """
import sys
from outlay.cli.main import main
sys.argv = ["outlay", "--help"]
try:
    main()
except SystemExit as finished:
    assert not finished.code, finished.code
"""
REPORT = "\nimport sys; print('loaded:', *sys.modules)"
MAX_HELP_SECONDS = 0.3


def run(program: str) -> str:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("program", [IMPORT_OUTLAY, SHOW_HELP], ids=["import outlay", "outlay --help"])
def test_nothing_heavy_is_imported(program):
    loaded = run(program + REPORT).rpartition("loaded:")[2].split()
    assert "outlay" in loaded
    assert not set(HEAVY) & set(loaded)


def test_help_takes_less_than_three_tenths_of_a_second():
    """In processor time, the best of five: on a loaded machine the clock on the wall says nothing."""
    assert min(_processor_seconds(SHOW_HELP) for _ in range(5)) < MAX_HELP_SECONDS


def _processor_seconds(program: str) -> float:
    before = os.times()
    run(program)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
