import json
import subprocess
import sys

import pytest
from tests.unit.cli.command import outlay_command
from typer.testing import CliRunner

from outlay.cli.main import app

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def no_site_template(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def slurm_run(*arguments: str):
    return CliRunner().invoke(app, ["slurm", "run", *arguments])


def printed(*arguments: str) -> list[str]:
    done = slurm_run(*arguments)
    assert done.exit_code == 0, done.output
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    return done.stdout.splitlines()


def test_one_process_per_gpu_unless_told_otherwise():
    lines = printed("digits", "--nodes", "2", "--gpus-per-node", "4")
    assert "# 8 processes in all, each with 1 GPU." in lines
    assert "#SBATCH --ntasks-per-node=4" in lines
    assert "#SBATCH --ntasks-per-node=1" in printed("digits", "--gpus-per-node", "4", "--tasks-per-node", "1")
    assert "#SBATCH --ntasks-per-node=1" in printed("digits", "--gpus-per-node", "0")


def test_what_is_not_ours_goes_to_the_run():
    lines = printed("digits", "--layout", "fsdp", "--gpus-per-node=4", "--size", "a b", "--", "--nodes", "3")
    assert lines[-1].endswith("outlay run digits --layout fsdp --size 'a b' --nodes 3")
    assert "#SBATCH --nodes=1" in lines


@pytest.mark.parametrize(
    ("presets", "tasks", "says"),
    [
        (["one-task"], 1, ["#SBATCH --nodes=1", "#SBATCH --gres=gpu:4"]),
        (["one-task", "v100"], 1, ["#SBATCH --cpus-per-task=40", "#SBATCH --partition=v100"]),
        (["two-nodes", "v100"], 4, ["#SBATCH --nodes=2", "#SBATCH --gres=gpu:4", "#SBATCH --cpus-per-task=10"]),
        (["a100"], 8, ["#SBATCH --gres=gpu:8", "#SBATCH --cpus-per-task=8", "#SBATCH --partition=a100"]),
    ],
)
def test_presets(presets, tasks, says):
    lines = printed("digits", *(f"--preset={name}" for name in presets))
    assert {f"#SBATCH --ntasks-per-node={tasks}", *says} <= set(lines)


def test_options_count_for_more_than_presets():
    lines = printed("digits", "--preset=a100", "--gpus-per-node=4", "--partition=big", "--cpus-per-task=3", "--nodes=5")
    expected = {"#SBATCH --gres=gpu:4", "#SBATCH --partition=big", "#SBATCH --cpus-per-task=3", "#SBATCH --nodes=5"}
    assert expected <= set(lines)


def test_modules_and_variables_keep_their_order():
    lines = printed("digits", "--gpus-per-node=1", "--module=b", "--module=a", "--env=Z=1=2", "--env", "A=")
    assert [line for line in lines if line.startswith(("module load", "export"))] == [
        *("module load b", "module load a", "export PYTHONUNBUFFERED=1"),
        *("export OUTLAY_TOKEN", "export Z=1=2", "export A=''"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digits"], "error: how many GPUs does a node have? No option or preset says so\n  fix: --gpus-per-node 4"),
        (["digits", "--gpus-per-node=4", "--nodes=0"], "--nodes 0: the least is 1"),
        (["digits", "--gpus-per-node=4", "--tasks-per-node=3"], "cannot be divided evenly among 3 tasks"),
        (["digits", "--preset=v100", "--tasks-per-node=0"], "--tasks-per-node 0: the least is 1"),
        (["digits", "--gpus-per-node=4", "--node=2"], "there is no option --node: did you mean --nodes?"),
        (["digits", "--gpus-per-node=4", "--env", "A", "--env=B"], "--env A, B: a variable needs a value"),
        (["digits", "--preset=h10"], "there is no preset 'h10'"),
        (["digits", "--gpus-per-node=4", "--template=none.j2"], "none.j2 cannot be read"),
        (["digits", "--gpus-per-node=4", "--requeue"], "fix: --checkpoint-every 100"),
        (
            ["digits", "--gpus-per-node=0", "--nodes=2", "--devices=8"],
            "and --devices=8 would be refused there\n  fix: leave",
        ),
        (["--gpus-per-node", "4"], "Missing argument 'RECIPE'"),
    ],
)
def test_a_mistake_ends_with_a_message_and_exit_code_2(arguments, says):
    failed = slurm_run(*arguments)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert says in failed.stderr


def test_submitted_scripts_are_not_printed(tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\n/bin/cat > {tmp_path}/job.sh\necho Submitted batch job 12\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["digits", "--gpus-per-node=4"]
    assert slurm_run(*arguments, "--submit").stdout == "Submitted batch job 12\n"
    assert (tmp_path / "job.sh").read_text() == slurm_run(*arguments).stdout
    sbatch.unlink()
    failed = slurm_run(*arguments, "--submit")
    assert failed.exit_code == 2
    assert "error: --submit hands the script to sbatch, but there is no sbatch on PATH" in failed.stderr


def test_no_jax_is_needed(tmp_path):
    code = (
        "import json, sys; from outlay.cli.main import app; "
        "app(['slurm', 'run', 'digits', '--gpus-per-node=4'], standalone_mode=False); "
        "print(json.dumps(sorted({'jax', 'jaxlib', 'numpy', 'jinja2'} & set(sys.modules))), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == ["jinja2"]


def test_the_installed_command(tmp_path):
    done = outlay_command("slurm", "run", "digits", "--preset", "one-task", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=digits\n")
