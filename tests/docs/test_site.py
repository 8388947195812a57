import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings_and_executes_its_pages(tmp_path):
    options = ["--quiet", "--fail-on-warning", "-j", "auto", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path)]
    # Pages assert agreement bit for bit, which what makes tests quick would break.
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tutorial = (tmp_path / "tutorials" / "getting_started.html").read_text(encoding="utf-8")
    # In a notebook a plan prints as the text that it is: the table stands between the mesh and the totals.
    assert re.search(r"mesh data=4, model=2 \(8 simulated devices\)\npath +shape +local", tutorial)
