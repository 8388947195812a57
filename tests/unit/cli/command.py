"""The command line as a user meets it: a process of its own, in an empty folder; and, for its messages, in this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forks
from typer.testing import CliRunner, Result

from outlay.cli.main import app

ROOT = Path(__file__).parents[3]
MAIN = ("-c", "from outlay.cli.main import main; main()")
OUTLAY = [sys.executable, *MAIN]
LINE = f"{ROOT}/tests/unit/recipes/small.py:line"


def forked_outlay() -> list[str]:
    """The command, as a fork of a process that has imported what it uses: as OUTLAY, but for the seconds."""
    return [forks.python(), *MAIN]


def environment(**variables: str) -> dict[str, str]:
    # The checkout that is tested goes first: a virtual environment may hold another one.
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}{os.pathsep}{ROOT}/packages/outlay-brain",
        **variables,
    }


def outlay_command(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, a fork, and so are the Python processes that it starts."""
    return subprocess.run(
        [*forked_outlay(), *arguments],
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
