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


PRESETS = """\
[v100]
gpus-per-node = 4
cpus-per-gpu = 10
partition = "v100"

[a100]
gpus-per-node = 8
cpus-per-gpu = 8
constraint = "a100"
account = "x@a100"
modules = ["cuda/12.8"]
sbatch = ["--mem=64G"]
env.DATA = "/data"
"""


@pytest.fixture
def own_presets(tmp_path):
    file = tmp_path / "outlay/slurm.toml"
    file.parent.mkdir()
    file.write_text(PRESETS)
    return file


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
        (["a100"], 8, ["#SBATCH --gres=gpu:8", "#SBATCH --cpus-per-task=8", "#SBATCH --constraint=a100"]),
        (["a100"], 8, ["#SBATCH --mem=64G", "module load cuda/12.8", "export DATA=/data", "#SBATCH --account=x@a100"]),
    ],
)
def test_presets(presets, tasks, says, own_presets):
    lines = printed("digits", *(f"--preset={name}" for name in presets))
    assert {f"#SBATCH --ntasks-per-node={tasks}", *says} <= set(lines)


def test_options_count_for_more_than_presets(own_presets):
    lines = printed("digits", "--preset=a100", "--gpus-per-node=4", "--partition=big", "--cpus-per-task=3", "--nodes=5")
    expected = {"#SBATCH --gres=gpu:4", "#SBATCH --partition=big", "#SBATCH --cpus-per-task=3", "#SBATCH --nodes=5"}
    assert expected <= set(lines)


def test_the_preset_called_default_counts_for_every_job(own_presets):
    own_presets.write_text('[default]\ngpus-per-node = 2\npartition = "small"\n\n[big]\npartition = "big"\n')
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --partition=small"} <= set(printed("digits"))
    assert {"#SBATCH --gres=gpu:2", "#SBATCH --partition=big"} <= set(printed("digits", "--preset", "big"))


def test_a_file_of_presets_with_mistakes_is_refused_with_its_lines(own_presets):
    own_presets.write_text('gpus = 1\n[a100]\ngpu-per-node = 8\nmodules = "cuda"\nnodes = true\n')
    failed = slurm_run("digits")
    assert failed.exit_code == 2
    for says in ("slurm.toml:1", "slurm.toml:3", "did you mean 'gpus-per-node'", "slurm.toml:4", "slurm.toml:5"):
        assert says in failed.stderr


def test_init_asks_and_writes_a_preset_that_run_takes(own_presets):
    answers = ["h100", "4", "24", "", "h100", "abc@h100", "", "20:00:00", "cuda/12.8 nccl", "--mem=0 --exclusive"]
    done = CliRunner().invoke(app, ["slurm", "init"], input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert own_presets.read_text().startswith(PRESETS)
    lines = printed("digits", "--preset", "h100")
    says = [
        "--cpus-per-task=24",
        "--constraint=h100",
        "--time=20:00:00",
        "--mem=0",
        "--exclusive",
        "--account=abc@h100",
    ]
    assert {f"#SBATCH {option}" for option in says} | {"module load cuda/12.8", "module load nccl"} <= set(lines)
    again = CliRunner().invoke(app, ["slurm", "init", "--name", "h100"], input="\n" * 9)
    assert again.exit_code == 2
    assert "there is a preset 'h100' already" in again.stderr


def test_a_program_of_ones_own_is_what_srun_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fft.py").write_text("import outlay\noutlay.join()\n")
    lines = printed("--nodes", "2", "--gpus-per-node", "4", "--", "python", "-u", "fft.py", "--nodes", "3", "a b")
    assert lines[-1] == "srun --label --kill-on-bad-exit=1 python -u fft.py --nodes 3 'a b'"
    assert {"#SBATCH --job-name=fft", "#SBATCH --nodes=2"} <= set(lines)
    requeued = printed("--gpus-per-node", "4", "--requeue", "--", "python", "fft.py")
    assert {"#SBATCH --signal=USR1@120", "srun --label --kill-on-bad-exit=1 python fft.py || code=$?"} <= set(requeued)


def test_a_program_that_does_not_join_its_processes_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone.py").write_text("import jax\n")
    program = ("--", "python", "alone.py")
    noted = slurm_run("--gpus-per-node", "4", *program)
    assert noted.exit_code == 0
    assert "note: alone.py calls neither outlay.join() nor jax.distributed.initialize()" in noted.stderr
    assert slurm_run("--gpus-per-node", "1", *program).stderr == ""


def test_options_of_sbatch_are_passed_on_and_replace_those_of_the_script():
    given = [
        "--sbatch",
        "--mem=64G",
        "--sbatch",
        "-C a100 -J fast",
        "--sbatch=mail-type END",
        "--sbatch=--gres=gpu:a100:4",
    ]
    lines = printed("digits", "--gpus-per-node=4", *given, "--sbatch", "--hint=multithread")
    options = ["--mem=64G", "--constraint=a100", "--mail-type=END", "--gres=gpu:a100:4", "--job-name=fast"]
    assert {f"#SBATCH {option}" for option in options} <= set(lines)
    assert len([line for line in lines if "--gres" in line]) == 1
    assert len([line for line in lines if line.startswith("#SBATCH --job-name")]) == 1
    assert [line for line in lines if "--hint" in line] == ["#SBATCH --hint=multithread"]


def test_modules_and_variables_keep_their_order():
    lines = printed("digits", "--gpus-per-node=1", "--module=b", "--module=a", "--env=Z=1=2", "--env", "A=")
    assert [line for line in lines if line.startswith(("module load", "export"))] == [
        *("module load b", "module load a", "export PYTHONUNBUFFERED=1"),
        *("export OUTLAY_TOKEN", "export Z=1=2", "export A=''"),
    ]  # fmt: skip


FOUR = "--gpus-per-node=4"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digitz", FOUR], "there is no recipe 'digitz': did you mean 'digits'?"),
        (["python", "own.py", FOUR], "a program comes after two dashes"),
        (["digits", FOUR, "--layout", "fdsp"], "digits has no layout 'fdsp': did you mean 'fsdp'"),
        (["digits", FOUR, "--layout=mine.toml"], "there is no file mine.toml"),
        (["digits", FOUR, "--layout=wrong.toml"], "wrong.toml:1"),
        (["own.py:recipes", FOUR], "own.py has no function 'recipes': did you mean 'recipe'?"),
        (["own.py", FOUR], "fix: own.py:recipe; or -- python own.py"),
        (["broken.py:recipe", FOUR], "broken.py:2: "),
        (["owm.py:recipe", FOUR], "there is no file owm.py; "),
        (["brain.scfg", FOUR], "there is no file brain.scfg"),
        ([FOUR, "--", "python", "owm.py"], "there is no file owm.py; "),
        ([FOUR, "--", "own.py"], "fix: -- python own.py"),
        ([FOUR, "--", "./own.py"], "./own.py is no file that can be executed\n    fix: chmod +x ./own.py, or: python"),
        ([FOUR, "--", "pyhton", "own.py"], "there is no program pyhton on PATH"),
        ([FOUR, "--", "outlay", "run", "digitz"], "there is no recipe 'digitz'"),
        ([FOUR, "--layout", "fsdp", "--", "python", "own.py"], "there is no option --layout of outlay slurm run"),
        ([FOUR, "--node=3", "--", "python", "own.py"], "there is no option --node: did you mean --nodes?"),
        (["digits", FOUR, "--", "python", "own.py"], "fix: leave digits out"),
        (["digits", FOUR, "--sbatch", "-N 3"], "--sbatch --nodes: the processes of the job are computed from it"),
        (["digits", FOUR, "--sbatch", "--x=1\n#SBATCH --nodes=9"], "it has more than one line"),
        (["digits", FOUR, "--sbatch", ""], "--sbatch '': it is empty"),
        (["digits", FOUR, "--time=1", "--sbatch=-t 2"], "--time and --sbatch --time: one of the two is enough"),
    ],
)
def test_what_would_fail_when_its_turn_comes_is_refused_before(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def recipe(): ...\n")
    (tmp_path / "broken.py").write_text("x = 1\ndef recipe(:\n")
    (tmp_path / "wrong.toml").write_text("[[rule]\n")
    failed = slurm_run(*arguments)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert says in failed.stderr


def test_what_is_only_on_the_cluster_is_not_looked_for():
    assert printed("far.py:recipe", FOUR, "--no-check")[-1].endswith("outlay run far.py:recipe")
    assert printed(FOUR, "--no-check", "--", "python", "far.py")[-1].endswith("python far.py")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digits"], "error: how many GPUs does a node have? No option or preset says so\n  fix: --gpus-per-node 4"),
        (["digits", "--gpus-per-node=4", "--nodes=0"], "--nodes 0: the least is 1"),
        (["digits", "--gpus-per-node=4", "--tasks-per-node=3"], "cannot be divided evenly among 3 tasks"),
        (["digits", "--preset=two-nodes", "--tasks-per-node=0"], "--tasks-per-node 0: the least is 1"),
        (["digits", "--gpus-per-node=4", "--node=2"], "there is no option --node: did you mean --nodes?"),
        (["digits", "--gpus-per-node=4", "--env", "A", "--env=B"], "--env A, B: a variable needs a value"),
        (["digits", "--preset=h10"], "there is no preset 'h10'"),
        (["digits", "--gpus-per-node=4", "--template=none.j2"], "none.j2 cannot be read"),
        (["digits", "--gpus-per-node=4", "--requeue"], "fix: --checkpoint-every 100"),
        (
            ["digits", "--gpus-per-node=0", "--nodes=2", "--devices=8"],
            "and --devices=8 would be refused there\n  fix: leave",
        ),
        (
            ["--gpus-per-node", "4"],
            "what is the job to run?\n  fix: outlay slurm run digits, or outlay slurm run -- pyth",
        ),
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
