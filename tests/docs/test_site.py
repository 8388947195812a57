import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs import forks

DOCS = Path(__file__).parents[2] / "docs"
# Pages assert agreement bit for bit, which what makes tests quick would break.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """The variables with which the kernels of pages, and the commands in them, are forks of one process."""
    commands = forks.write_commands(tmp_path_factory.mktemp("forks"))
    command, variables = [sys.executable, forks.__file__, str(commands)], {**os.environ, "XLA_FLAGS": FLAGS}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=variables, text=True, start_new_session=True, **pipes) as server:
        assert server.stdout.readline() == "ready\n"
        yield {**variables, "JUPYTER_PATH": str(commands)}
        server.stdin.close()


@pytest.mark.parametrize("arguments", [["show", "digits", "--devices", "4"], ["show", "digitz"]], ids=["well", "wrong"])
def test_a_fork_does_what_its_program_does(arguments, forked, tmp_path):
    own, fork = Path(sys.executable).with_name("outlay"), Path(forked["JUPYTER_PATH"], "outlay")
    expected, done = (
        subprocess.run([program, *arguments], env=forked, cwd=tmp_path, capture_output=True, text=True, check=False)
        for program in (own, fork)
    )
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings_and_executes_its_pages(tmp_path, forked):
    options = ["--quiet", "--fail-on-warning", "-j", "auto", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path)]
    done = subprocess.run(command, env=forked, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tutorial = (tmp_path / "tutorials" / "getting_started.html").read_text(encoding="utf-8")
    # In a notebook a plan prints as the text that it is: the table stands between the mesh and the totals.
    assert re.search(r"mesh data=4, model=2 \(8 simulated devices\)\npath +shape +local", tutorial)
