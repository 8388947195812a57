"""How commands end: one meaning for each exit code, never a raw traceback, and one JSON document with `--json`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.unit.cli.command import LINE, ROOT, command_here, environment, forked_outlay, outlay_command
from typer.testing import CliRunner, Result

from outlay.cli import failures, output
from outlay.cli.main import app
from outlay.core import jax_compat

RECIPES = f"{ROOT}/tests/unit/cli/bad_recipes.py"


def ends(folder: Path, *arguments: str) -> Result:
    ended = command_here(*arguments, cwd=folder)
    assert isinstance(ended.exception, SystemExit | None)
    return ended


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            "vector",
            "loss\n    a metric of a run is a real number, or up to 256 in a row but for the loss; this is of shape",
        ),
        ("empty", "the recipe 'ok' has no batch: data[0] raised IndexError"),
        ("short", "the data ends early: 5 steps need data[0] to data[4], but there is no data[3]"),
        ("no_server", 'raise ConnectionError("no data server")\nConnectionError: no data server'),
        ("broken_step", "ZeroDivisionError: division by zero"),
        ("outside", "the recipe is called '../../elsewhere', which cannot be the name of a folder"),
        ("zero_byte", r"the recipe is called 'a\x00b', which cannot be the name of a folder"),
        ("long_name", "which cannot be the name of a folder"),
    ],
)
def test_what_is_wrong_with_a_recipe_ends_with_its_place_and_exit_code_2(tmp_path, recipe, words):
    failed = ends(tmp_path, "run", f"{RECIPES}:{recipe}")
    assert failed.exit_code == 2, failed.output
    assert words in failed.stderr
    assert "outlay/cli" not in failed.stderr
    assert "site-packages" not in failed.stderr


def test_a_step_whose_outputs_are_no_metrics_is_refused_only_where_it_is_trained(tmp_path):
    assert ends(tmp_path, "show", f"{RECIPES}:vector").exit_code == 0


@pytest.mark.compiles
def test_what_fails_after_training_does_not_lose_it(tmp_path):
    failed = ends(tmp_path, "run", f"{RECIPES}:broken_ends", "--checkpoint-every", "3")
    assert failed.exit_code == 2
    assert "evaluate (broken_ends.<locals>.<lambda>), which is to return a dictionary of numbers" in failed.stderr
    assert "ZeroDivisionError: division by zero" in failed.stderr
    assert "it returned a int: 3" in failed.stderr
    assert "the state after the last step is in runs/ok/checkpoints" in failed.stderr
    assert {"loss.png", "metrics.jsonl", "plan.json", "report.html"} <= {
        p.name for p in (tmp_path / "runs/ok").iterdir()
    }


def test_a_fault_of_our_own_says_how_to_report_it(tmp_path, monkeypatch):
    def fault(*_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(output, "print_picture", fault)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The frames of a test are as little Outlay's own as those of a recipe.
    monkeypatch.setattr(failures, "users_traceback", lambda error, files: None)
    failed = ends(tmp_path, "show", LINE)
    assert failed.exit_code == 70
    assert "this is a bug in Outlay: KeyError: 'no such thing'" in failed.stderr
    assert "Traceback" not in failed.stderr
    (report,) = tmp_path.glob("outlay-fault-*.txt")
    assert str(report) in failed.stderr
    assert "Traceback (most recent call last)" in report.read_text()
    assert f"outlay show {LINE}" in report.read_text()


def test_the_machine_is_no_fault_of_ours(tmp_path):
    assert failures.failure_of(PermissionError(13, "Permission denied", "/proc/x")).exit_code == 2
    assert failures.failure_of(MemoryError()).exit_code == 2
    failed = ends(tmp_path, "run", LINE, "--steps", "1", "--run-folder", "n" * 300)
    assert failed.exit_code == 2
    assert "File name too long" in failed.stderr


@pytest.mark.processes
def test_jax_that_cannot_start_is_said_everywhere(tmp_path, monkeypatch):
    def absent() -> None:
        raise AssertionError

    monkeypatch.setattr(jax_compat.jax, "devices", absent)
    failed = ends(tmp_path, "show", LINE)
    assert failed.exit_code == 2
    assert "error: JAX does not start" in failed.stderr
    doctor = ends(tmp_path, "doctor", "--json")
    assert doctor.exit_code == 1
    assert "JAX does not start" in json.loads(doctor.stdout)["failure"]


def test_json_is_one_document_whatever_a_recipe_prints(tmp_path):
    done = ends(tmp_path, "run", f"{RECIPES}:noisy", "--json")
    assert json.loads(done.stdout)["sample"] == "a sample"
    assert "noise of the recipe" in done.stderr
    assert "noise at the end" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["show", "nowhere.py:recipe", "--json"], "RecipeError"),
        (["show", LINE, "--json", "--devices", "0"], "BadParameter"),
        (["run", f"{RECIPES}:broken_step", "--json"], "ZeroDivisionError"),
    ],
)
def test_errors_are_json_too_where_json_was_asked_for(tmp_path, arguments, kind):
    failed = ends(tmp_path, *arguments)
    error = json.loads(failed.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == (kind, 2)
    assert failed.stderr


def test_names_of_strangers_are_not_obeyed_by_a_terminal(tmp_path):
    shown = ends(tmp_path, "show", f"{RECIPES}:hostile")
    assert shown.exit_code == 0, shown.stderr
    assert r"w\x1b]0;title" in shown.stdout
    refused = ends(tmp_path, "show", "nowhere\x1b[2J.py:recipe")
    assert "\x1b" not in shown.output + refused.output


def test_version_and_traceback_can_be_asked_for(tmp_path):
    assert ends(tmp_path, "--version").stdout.startswith("outlay ")
    failed = CliRunner().invoke(app, ["--traceback", "show", "digit"])
    assert failed.exit_code == 2
    assert "Traceback (most recent call last)" in failed.stderr


@pytest.mark.processes
def test_a_command_of_its_own_outlives_its_readers(tmp_path):
    """In one process after another: nobody reads, no room, no stdout at all, processes of a job, noise of a child."""
    words = [f"{RECIPES}:noisy", "--steps", "3"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*forked_outlay(), "run", *words, "--run-folder", str(tmp_path / "piped")]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes, text=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        messages = run.stderr.read()
    assert run.returncode == 0, messages
    assert "stdout cannot be written (Broken pipe): the run goes on" in messages
    assert len((tmp_path / "piped/metrics.jsonl").read_text().splitlines()) == 3
    (tmp_path / "json.py").write_text("raise SystemExit('shadows the standard library')\n")
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [sys.executable, "-m", "outlay", "doctor"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (shown.returncode, shown.stderr) == (2, "error: stdout cannot be written: No space left on device\n")
    (tmp_path / "json.py").unlink()  # `python -c`, as the next command is started, looks there first
    job = outlay_command("run", *words, "--processes", "2", "--devices", "2", "--json", cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    assert json.loads(job.stdout)["num_steps"] == 3


def test_a_collective_that_another_process_has_left_is_no_fault_of_ours():
    error = RuntimeError("UNKNOWN: Gloo AllGather failed: Read error [127.0.0.1]:5539: Connection reset by peer")
    failure = failures.failure_of(error)
    assert failure.exit_code == failures.WRONG_USE
    assert failure.message.startswith("another process of the job has gone, or cannot be reached: UNKNOWN: Gloo")
