"""`outlay profile` as a user meets it."""

import json

import pytest
from tests.unit.cli.command import LINE, command_here, outlay_command

pytestmark = pytest.mark.processes


def test_a_recipe_is_run_and_its_lines_are_told_with_both_times(tmp_path):
    output = outlay_command(
        "profile",
        LINE,
        "--devices",
        "4",
        "--steps",
        "2",
        "--trace",
        "step.json",
        "--calibrate",
        "my.toml",
        cwd=tmp_path,
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.startswith("step: 2 steps on 4 devices, predicted with the speeds of cpu:4\n")
    assert "small.py:12" in output.stdout
    first, *speeds, last = output.stderr.splitlines()
    assert first == "wrote step.json: open it at https://ui.perfetto.dev"
    assert speeds[0] == "cpu: each device, fitted to a step"
    assert speeds[1].split() == ["speed", "before", "fitted"]
    assert last == "wrote my.toml: --target my.toml:4 predicts with it"
    assert (tmp_path / "my.toml").read_text().startswith("# Written by `outlay profile --calibrate`")
    processes = [e["args"]["name"] for e in _events(tmp_path / "step.json") if e["name"] == "process_name"]
    assert [name.partition(":")[0] for name in processes] == ["predicted", "measured"]


def test_a_trace_that_is_not_there_ends_with_2(tmp_path):
    output = command_here("profile", LINE, "--devices", "8", "--read", ".", cwd=tmp_path)
    assert output.exit_code == 2
    assert output.stderr.startswith("error: there is no trace in .\n")


def test_a_file_that_no_target_can_name_is_refused_before_anything_runs(tmp_path):
    output = command_here("profile", LINE, "--calibrate", "speeds.txt", cwd=tmp_path)
    assert output.exit_code == 2
    assert "speeds.txt: a target names a file that ends in .toml" in output.output


def test_a_target_of_a_file_predicts_with_its_speeds(tmp_path):
    (tmp_path / "mine.toml").write_text("[cpu]\nmemory_bandwidth = 1e7\n")
    seconds = {}
    for target in ("cpu:8", "mine.toml:8"):
        output = command_here("estimate", LINE, "--target", target, "--layout", "fsdp", "--json", cwd=tmp_path)
        facts = json.loads(output.stdout)
        assert facts["target"] == target
        seconds[target] = facts["seconds"]
    assert seconds["mine.toml:8"] > 2 * seconds["cpu:8"]


def _events(path):
    return json.loads(path.read_text())["traceEvents"]
