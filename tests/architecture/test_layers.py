"""The import contracts of pyproject.toml hold: they are the architecture, written as sentences."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def test_every_import_contract_is_kept():
    linter = Path(sys.executable).with_name("lint-imports")
    finished = subprocess.run(
        [linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
