"""The GitHub Action that posts a layout's difference in review: its script is run in a repository with two commits."""

import os
import shlex
import subprocess

import pytest
from tests.unit.cli.command import ROOT, environment, forked_outlay

ACTION = ROOT / ".github" / "actions" / "layout-diff"

RECIPE = """
import numpy as np, outlay
from outlay import Recipe

def recipe():
    def init(key):
        return {{"w": np.zeros(({width}, 8), np.float32)}}
    def step(state, batch):
        return state, {{"loss": (batch @ state["w"]).mean()}}
    layouts = {{"dp": outlay.data_parallel()}}
    data = [np.ones((8, {width}), np.float32)]
    return Recipe("small", init, step, data, 1, layouts=layouts, meshes={{"dp": "data=-1"}})
"""


def git(folder, *words):
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for width in (8, 1024):
        (folder / "train.py").write_text(RECIPE.format(width=width))
        git(folder, "add", "train.py")
        git(folder, "commit", "--quiet", "-m", f"width {width}")
    return folder


@pytest.mark.some_cases(1)
@pytest.mark.processes
@pytest.mark.parametrize(("limits", "code"), [("", 0), ("memory>1GB\n", 0), ("memory>+2%\nall-gather>+0", 1)])
def test_the_script_posts_the_difference_and_fails_over_a_limit(repository, tmp_path, limits, code):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "outlay").write_text(f'#!/bin/sh\nexec {shlex.join(forked_outlay())} "$@"\n')
    # What GitHub's own command would post is kept.
    (tools / "gh").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/posted.txt\ncp "$7" {tmp_path}/comment.md\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    given = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "RECIPE": "train.py:recipe",
        "OPTIONS": "--devices 4",
        "FAIL_IF": limits,
        "BASE": git(repository, "rev-parse", "HEAD~1").strip(),
        "PULL_REQUEST": "7",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    script = ["bash", str(ACTION / "layout_diff.sh")]
    finished = subprocess.run(
        script, cwd=repository, env=environment(**given), capture_output=True, text=True, check=False
    )
    assert finished.returncode == code, finished.stderr
    assert (tmp_path / "posted.txt").read_text().startswith("pr comment 7 --edit-last --create-if-none --body-file")
    comment = (tmp_path / "comment.md").read_text()
    assert comment.startswith("**Layout** before.json -> after.json: step on data=4 cpu:4")
    assert "| memory: peak |" in comment
    assert (":x: memory" in comment) is (code == 1)
    assert (tmp_path / "summary.md").read_text() == comment
    assert git(repository, "worktree", "list").count("\n") == 1


def test_the_action_names_only_inputs_that_it_has():
    text = (ACTION / "action.yml").read_text()
    inputs = text.partition("inputs:\n")[2].partition("runs:\n")[0]
    declared = {line.strip(" :") for line in inputs.splitlines() if line.startswith("  ") and line[2] != " "}
    used = {part.partition(" }}")[0] for part in text.split("${{ inputs.")[1:]}
    assert used == declared
