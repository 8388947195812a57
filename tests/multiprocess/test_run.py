"""`outlay run --processes`: one recipe over real processes, with the results of one."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import psutil
import pytest
from tests.unit.cli.command import LINE, command_here, environment, forked_outlay, outlay_command
from tests.unit.recipes.small import line

import outlay
from outlay.launcher.job import free_port

FRAGILE = str(Path(__file__).parent / "fragile.py")
LONGEST = 280  # seconds after which a run hangs
NUM_STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted():
    """The losses on two devices of this process, where nothing happens."""
    recipe, mesh = line(), outlay.mesh(data=2, devices=jax.devices()[:2])
    program = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts["fsdp"], mesh=mesh)
    done = outlay.fit(program, recipe.data, steps=NUM_STEPS, key=jax.random.key(recipe.seed), progress=False)
    return [metrics["loss"] for metrics in done.history]


SHORT = ("run", LINE, "--devices", "8", "--layout", "fsdp", "--steps", "4", "--checkpoint-every", "2")


@pytest.fixture(scope="module")
def alone(folder, blank_pictures):
    """A short run of one process, this one."""
    done = command_here(*SHORT, "--run-folder", "alone", cwd=folder)
    assert done.exit_code == 0, done.output
    return folder / "alone"


@pytest.fixture(scope="module")
def together(folder):
    """The same of two processes, and what they print."""
    done = outlay_command(*SHORT, "--run-folder", "together", "--processes", "2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "together", done.stdout


def test_two_processes_train_as_one_and_leave_one_run_folder(alone, together):
    left, printed = together
    assert losses(left) == pytest.approx(losses(alone), rel=1e-6)
    assert printed.count("held out") == 1
    assert sorted(os.listdir(left)) == sorted(os.listdir(alone))


def test_a_run_goes_on_in_another_number_of_processes(together, uninterrupted, tmp_path):
    shutil.copytree(together[0], tmp_path / "run")
    resumed = command_here(  # in one process; in more of them: test_same_result.py
        *("run", LINE, "--devices", "8", "--layout", "dp", "--steps", "6", "--run-folder", "run", "--resume"),
        cwd=tmp_path,
    )
    assert resumed.exit_code == 0, resumed.output
    assert losses(tmp_path / "run") == pytest.approx(uninterrupted[:6], rel=1e-5)


def test_recipes_that_differ_are_refused_before_the_run_folder_is_touched(folder):
    (folder / "taken").mkdir()
    (folder / "taken" / "metrics.jsonl").write_text("{}")
    refused = outlay_command(
        *("run", f"{FRAGILE}:confused", "--devices", "2", "--processes", "2", "--run-folder", "taken", "--force"),
        cwd=folder,
    )
    assert refused.returncode == 2
    assert "process 1 against process 0:\n    config: seed is 1, there 0\n" in refused.stderr
    assert (folder / "taken" / "metrics.jsonl").read_text() == "{}"


def test_devices_that_cannot_be_shared_are_refused(folder):
    refused = command_here("run", LINE, "--devices", "4", "--processes", "3", cwd=folder)
    assert refused.exit_code == 2
    assert "4 devices cannot be shared evenly by 3 processes" in refused.stderr
    assert "1 or 2 or 4 can share them" in refused.stderr


def test_a_run_whose_process_is_killed_starts_again_from_its_last_checkpoint(folder, alone, uninterrupted):
    # In a folder with another run, which --force replaces once, and not again at the restart.
    shutil.copytree(alone, folder / "killed")
    killed = outlay_command(
        *("run", f"{FRAGILE}:killed_once", "--devices", "2", "--layout", "fsdp", "--processes", "2"),
        *("--steps", "12", "--checkpoint-every", "2", "--max-restarts", "2", "--run-folder", "killed", "--force"),
        cwd=folder,
    )
    assert killed.returncode == 0, killed.stderr
    assert "process 1 of 2 failed first: ended by SIGKILL" in killed.stderr
    assert "restart 1 of 2" in killed.stderr
    assert "restart 2 of 2" not in killed.stderr
    assert "restart" not in killed.stderr.partition("continued after step ")[2]
    assert int(killed.stderr.partition("continued after step ")[2].split(":")[0]) in (2, 4, 6)
    assert losses(folder / "killed") == pytest.approx(uninterrupted[:12], rel=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--processes", "2", "--max-restarts", "1"), "this run saves none; add --checkpoint-every 100"),
        (("--checkpoint-every", "5", "--max-restarts", "1"), "it needs --processes P"),
        (("--in-order",), "it needs --processes P"),
        (("--stuck-after", "off"), "it needs --processes P"),
    ],
)
def test_restarts_need_processes_and_checkpoints(folder, options, says):
    refused = command_here("run", LINE, *options, cwd=folder)
    assert refused.exit_code == 2
    assert says in " ".join(refused.stderr.split())


def as_slurm_does(process, port, folder, *options):
    """A task of two, as srun starts it on this machine."""
    variables = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
    }
    variables |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
    command = [
        *forked_outlay(),
        "run",
        f"{FRAGILE}:unhurried",
        "--layout",
        "fsdp",
        "--checkpoint-every",
        "100",
        "--resume",
    ]
    return subprocess.Popen(
        [*command, "--run-folder", "slurm", "--steps", str(NUM_STEPS), *options],
        cwd=folder,
        env=environment(**variables, SLURM_NODEID="0", OUTLAY_COORDINATOR=f"127.0.0.1:{port}", JAX_PLATFORMS="cpu"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_usage_error_under_srun_ends_with_its_own_message(tmp_path):
    port = free_port()
    tasks = [as_slurm_does(process, port, tmp_path, "--layout", "fdsp") for process in (0, 1)]
    errors = [task.communicate(timeout=LONGEST)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [2, 2], errors
    assert not any("Traceback" in each or "SystemExit" in each for each in errors), errors
    assert any(each.rstrip().splitlines()[-1].startswith("  fix:") for each in errors), errors


def test_a_signal_before_the_time_limit_saves_and_the_next_job_goes_on(uninterrupted, tmp_path):
    def job(*signalled):
        port = free_port()
        tasks = [as_slurm_does(process, port, tmp_path) for process in (0, 1)]
        try:
            give_up = time.monotonic() + LONGEST
            while signalled and not (tmp_path / "now").exists():
                assert time.monotonic() < give_up
                assert all(task.poll() is None for task in tasks), tasks[0].communicate()
                time.sleep(0.02)
            for process in signalled:
                tasks[process].send_signal(signal.SIGUSR1)
            return [(task.communicate(timeout=LONGEST), task.returncode) for task in tasks]
        finally:
            for task in tasks:
                task.kill()

    first = job(1)  # SLURM sends it to all, which is easier: none has to tell the others
    assert [code for _, code in first] == [75, 75], first
    errors = first[0][0][1]
    assert "stopped on request after step " in errors
    step = int(errors.partition("stopped on request after step ")[2].split()[0])
    assert sorted(os.listdir(tmp_path / "slurm" / "checkpoints")) == [str(step), "outlay.txt"]
    assert len(losses(tmp_path / "slurm")) == step
    second = job()
    assert [code for _, code in second] == [0, 0], second
    assert f"continued after step {step}" in second[0][0][1]
    assert losses(tmp_path / "slurm") == pytest.approx(uninterrupted, rel=1e-6)


@pytest.mark.thorough  # the test above has signals
@pytest.mark.parametrize(
    ("number", "code", "to"),
    [(signal.SIGUSR1, 75, "launcher"), (signal.SIGTERM, 143, "launcher"), (signal.SIGTERM, 143, "all")],
)
def test_a_signal_to_the_launcher_or_to_all_has_the_run_saved(tmp_path, number, code, to):
    command = [*forked_outlay(), "run", f"{FRAGILE}:unhurried", "--devices", "2", "--processes", "2", "--steps", "2000"]
    job = subprocess.Popen(
        [*command, "--run-folder=saved", "--checkpoint-every=10000", "--max-restarts=1", "--stuck-after=off"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        give_up = time.monotonic() + LONGEST
        while not (tmp_path / "now").exists():
            assert time.monotonic() < give_up
            assert job.poll() is None, job.communicate()
            time.sleep(0.02)
        below = psutil.Process(job.pid).children(recursive=True) if to == "all" else []
        for process in [*below, job]:  # as scancel does
            process.send_signal(number)
        _, errors = job.communicate(timeout=LONGEST)
    finally:
        job.kill()
    assert job.returncode == code, errors
    assert "stopped on request after step " in errors
    step = errors.partition("stopped on request after step ")[2].split()[0]
    assert sorted(os.listdir(tmp_path / "saved" / "checkpoints")) == [step, "outlay.txt"]
    assert "restart" not in errors
