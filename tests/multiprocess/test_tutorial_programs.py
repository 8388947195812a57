"""What starts processes, and what they print. Global arrays: test_global_arrays.py.

The programs are those of the tutorials.
"""

import re
import subprocess
from pathlib import Path

import pytest
from tests import forks
from tests.unit.cli.command import command_here, environment, outlay_command

PROGRAMS = Path(__file__).parents[2] / "docs" / "tutorials" / "programs"


def launch(folder, *options, command):
    done = outlay_command("launch", *options, "--", forks.python(), *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    command = [str(PROGRAMS / "who.py")]
    return launch(tmp_path_factory.mktemp("who"), "-n", "2", "--devices-per-process", "4", command=command)


def test_one_command_starts_processes_with_devices_each(started):
    rows = re.findall(r"^ +(\d)  \S+ +(\d+)  (\d) x cpu", started.stderr, re.MULTILINE)
    assert [(process, devices) for process, _, devices in rows] == [("0", "4"), ("1", "4")]
    assert len({pid for _, pid, _ in rows}) == 2
    for process in (0, 1):
        assert f"[{process}] I am process {process} of 2\n" in started.stdout


def test_who_holds_a_global_array_and_which_shards_is_shown(started):
    for process, blocks in enumerate(["[[0], [1], [2], [3]]", "[[4], [5], [6], [7]]"]):
        assert f"[{process}] 8 devices hold x, 4 of them are mine\n" in started.stdout
        assert f"[{process}] fully addressable: False, fully replicated: False\n" in started.stdout
        assert f"[{process}] a shard is (1,), mine are {blocks}\n" in started.stdout
        assert f"[{process}] mesh x=8 (8 simulated devices in 2 processes)\n" in started.stdout
        assert f"[{process}] a device holds (1,), 4 B of 32 B\n" in started.stdout


@pytest.mark.parametrize(
    ("options", "nodes", "tasks", "says"),
    [
        (["--nodes", "1", "--tasks-per-node", "1"], 1, 1, "1 process in all, each with 4 GPUs."),
        (["--nodes", "2"], 2, 4, "8 processes in all, each with 1 GPU."),
    ],
)
def test_scripts_of_one_task_and_of_eight(tmp_path, monkeypatch, options, nodes, tasks, says):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = command_here("slurm", "run", "digits", "--gpus-per-node", "4", *options, cwd=tmp_path)
    lines = done.stdout.splitlines()
    expected = {f"#SBATCH --nodes={nodes}", f"#SBATCH --ntasks-per-node={tasks}", "#SBATCH --gres=gpu:4", f"# {says}"}
    assert expected <= set(lines)
    assert lines[-1] == "srun --label --kill-on-bad-exit=1 outlay run digits"


def test_under_srun_no_arguments_are_needed():
    simulated = environment(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    command = [PROGRAMS / "srun", "--label", forks.python(), PROGRAMS / "who.py"]
    done = subprocess.run(command, env=simulated, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout
    for task in (0, 1):
        assert f"{task}: I am process {task} of 2\n" in done.stdout
        assert f"{task}: 8 devices hold x, 4 of them are mine\n" in done.stdout


@pytest.mark.thorough  # test_output.py
def test_output_can_be_read_in_step_order(tmp_path):
    options = ("-n", "2", "--devices-per-process", "1", "--in-order")
    printed = launch(tmp_path, *options, command=[str(PROGRAMS / "turns.py")]).stdout
    steps = re.findall(r"^\[\d\] (step.*)$", printed, re.MULTILINE)
    assert steps == [f"step {step} of process {process}" for step in (1, 2, 3) for process in (0, 1)]
