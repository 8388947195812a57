"""`outlay profile` as a user meets it."""

import json

import pytest
from tests.unit.cli.command import LINE, outlay_command

pytestmark = pytest.mark.processes


def test_a_recipe_is_run_and_its_lines_are_told_with_both_times(tmp_path):
    told = outlay_command("profile", LINE, "--devices", "4", "--steps", "2", "--trace", "step.json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("step: 2 steps on 4 devices, predicted with the speeds of cpu:4\n")
    assert "small.py:12" in told.stdout
    assert told.stderr == "wrote step.json: open it at https://ui.perfetto.dev\n"
    processes = [e["args"]["name"] for e in _events(tmp_path / "step.json") if e["name"] == "process_name"]
    assert [name.partition(":")[0] for name in processes] == ["predicted", "measured"]


def test_a_trace_that_is_not_there_ends_with_2(tmp_path):
    told = outlay_command("profile", LINE, "--devices", "4", "--read", ".", cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("error: there is no trace in .\n")


def _events(path):
    return json.loads(path.read_text())["traceEvents"]
