"""The command line as a user meets it: a process of its own, in an empty folder; and, for its messages, in this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlay.cli.main import app

ROOT = Path(__file__).parents[3]
OUTLAY = [sys.executable, "-c", "from outlay.cli.main import main; main()"]
LINE = f"{ROOT}/tests/unit/recipes/small.py:line"


def environment(**variables: str) -> dict[str, str]:
    # The checkout that is tested goes first: a virtual environment may hold another one.
    return {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}", **variables}


def outlay_command(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OUTLAY, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def command_here(*arguments: str, cwd: Path) -> Result:
    """In this process, whose JAX has eight devices; a process of its own takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        return CliRunner().invoke(app, arguments)
