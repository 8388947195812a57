"""`import outlay` and `outlay --help` answer at once: neither loads jax, which alone takes about a second."""

import subprocess
import sys

import pytest

HEAVY = ("flax", "grain", "jax", "jaxlib", "matplotlib", "numpy", "optax", "scipy")
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
# `outlay --help` takes 0.15 to 0.2 s of a processor, nearly all of it for imports. typer alone loads 145 modules, and
# the commands themselves some twenty.
# Five more since the command of an application is among them, with what it is written on.
MAX_MODULES = 215


def run(program: str) -> str:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.processes
@pytest.mark.parametrize("program", [IMPORT_OUTLAY, SHOW_HELP], ids=["import outlay", "outlay --help"])
def test_nothing_heavy_is_imported(program):
    loaded = run(program + REPORT).rpartition("loaded:")[2].split()
    assert "outlay" in loaded
    assert not set(HEAVY) & set(loaded)


@pytest.mark.processes
def test_help_loads_few_modules():
    assert len(run(SHOW_HELP + REPORT).rpartition("loaded:")[2].split()) < MAX_MODULES
