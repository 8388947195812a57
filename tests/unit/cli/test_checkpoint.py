import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from tests.unit.cli.command import LINE, OUTLAY, command_here, environment, outlay_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With one run that kept two checkpoints."""
    path = tmp_path_factory.mktemp("runs")
    done = command_here("run", LINE, "--devices=8", "--steps=4", "--checkpoint-every=2", "--run-folder=line", cwd=path)
    assert done.exit_code == 0, done.output
    return path


@pytest.mark.processes
def test_a_checkpoint_is_shown_without_devices(folder):
    shown = outlay_command("checkpoint", "show", "line", cwd=folder, JAX_PLATFORMS="none there")
    assert shown.returncode == 0, shown.stderr
    assert "whole checkpoints of steps 2, 4" in shown.stdout
    assert "step 4: 6 leaves" in shown.stdout
    assert "devices mesh data=8 (8 simulated devices)" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["params.w", "(32,)", "float32", "128", "B"] in rows
    assert ["key", "()", "key<fry>", "8", "B"] in rows


def test_it_is_found_by_any_of_its_folders(folder):
    shown = [command_here("checkpoint", "show", f"line{inner}", cwd=folder) for inner in ("", "/checkpoints/4")]
    assert "step 4: 6 leaves" in shown[0].stdout
    checkpoints = command_here("checkpoint", "show", "line/checkpoints", cwd=folder)
    assert {each.stdout for each in shown} == {checkpoints.stdout}


def test_an_older_one_as_json(folder):
    shown = command_here("checkpoint", "show", "line", "--step", "2", "--json", cwd=folder)
    facts = json.loads(shown.stdout)
    assert (facts["steps"], facts["damaged"], facts["checkpoint"]["step"]) == ([2, 4], {}, 2)


def test_a_damaged_one_is_named_and_the_check_fails(folder, tmp_path):
    shutil.copytree(folder / "line" / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "4" / "arrays" / "manifest.ocdbt").unlink()
    shown = command_here("checkpoint", "show", "checkpoints", cwd=tmp_path)
    assert shown.exit_code == 1
    assert "whole checkpoints of steps 2\nstep 2: " in shown.stdout
    assert "damaged: step 4: " in shown.stderr
    assert "/4/arrays/manifest.ocdbt is missing" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "nowhere has no checkpoint"), (["line", "--step", "3"], "of step 3; it has those of steps 2, 4")],
)
def test_what_is_not_there_is_an_error(folder, arguments, message):
    shown = command_here("checkpoint", "show", *arguments, cwd=folder)
    assert shown.exit_code == 2
    assert message in shown.stderr


def test_a_run_cannot_be_continued_and_replaced(folder):
    done = command_here("run", LINE, "--resume", "--force", cwd=folder)
    assert done.exit_code == 2
    assert "--force would replace the run that it is to continue" in done.stderr


def losses(path):
    return [json.loads(line)["loss"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.processes
def test_a_killed_run_is_continued_on_fewer_devices_with_the_same_losses(folder):
    options = ["--steps", "120", "--checkpoint-every", "5", "--run-folder"]
    killed = subprocess.Popen(
        [*OUTLAY, "run", LINE, "--devices", "8", "--layout", "fsdp", *options, "killed"],
        cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        give_up = time.monotonic() + 280
        while not (folder / "killed" / "checkpoints" / "10").exists() and time.monotonic() < give_up:
            assert killed.poll() is None
            time.sleep(0.01)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    assert len(losses(folder / "killed")) < 120
    resumed = outlay_command(
        "run", LINE, "--devices", "4", "--layout", "dp", "--resume", "--run-folder", "killed", cwd=folder
    )
    assert resumed.returncode == 0, resumed.stderr
    assert ", continued after step " in resumed.stdout
    whole = command_here(
        "run", LINE, "--devices", "8", "--layout", "dp", "--steps", "120", "--run-folder", "whole", cwd=folder
    )
    assert whole.exit_code == 0, whole.output
    assert losses(folder / "killed") == pytest.approx(losses(folder / "whole"), rel=1e-5, abs=1e-5)
