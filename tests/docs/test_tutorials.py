"""Tutorials as plain scripts. They assert what they teach; test_site executes every one of them as a notebook.

As scripts run the one that a reader begins with, and the one whose printed table is looked at here.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


def run(tutorial: Path) -> str:
    """What a tutorial prints."""
    done = subprocess.run([sys.executable, str(tutorial)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_tutorial_runs_as_a_script():
    run(DOCS / "tutorials" / "getting_started.py")


@pytest.mark.timeout(300)
def test_s1_17_the_three_ways_side_by_side():
    printed = run(DOCS / "tutorials" / "three_ways.py")
    rows = re.findall(r"^(\S.*?) +\[(.*)\]  (\{.*\})  time [\d.]+$", printed, re.MULTILINE)
    rows_by_name = {name: (np.array(values.split(), float), collectives) for name, values, collectives in rows}
    assert list(rows_by_name) == ["plain", "automatic", "with constraints", "by hand", "by hand, one device"]
    for name, (values, collectives) in rows_by_name.items():
        np.testing.assert_allclose(values, [0.02138916, 0.8931118, 0.5989196, 0.9774251], rtol=1e-5)
        assert collectives == ("{}" if name == "plain" else "{'all-reduce': 1}")


def test_every_tutorial_is_listed_for_the_reader():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for tutorial in TUTORIALS:
        assert f"\ntutorials/{tutorial.stem}\n" in index
        assert f"(tutorials/{tutorial.name})" in index
