"""Exit codes, streams and files of real processes."""

import json
import signal
import subprocess
import sys
import time

import pytest
from tests import forks
from tests.unit.cli.command import LINE, MAIN, OUTLAY, command_here, environment, outlay_command

pytestmark = pytest.mark.processes


ASKS_FOR_TWO = """
import outlay
from tests.unit.recipes.small import line

def recipe():
    outlay.simulate(2)
    return line()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "mine.py").write_text(ASKS_FOR_TWO)
    arguments = ("run", "mine.py:recipe", "--devices", "4", "--layout", "fsdp", "--steps", "3", "--plan")
    return folder, outlay_command(*arguments, cwd=folder)


def test_a_run_ends_well_with_its_folder(run):
    folder, finished = run
    assert finished.returncode == 0, finished.stderr
    names = sorted(path.name for path in (folder / "runs" / "line").iterdir())
    assert names == [
        "config.json",
        "loss.png",
        "metrics.jsonl",
        "outlay.txt",
        "plan.json",
        "report.html",
        "times.jsonl",
    ]


def test_results_go_to_stdout_and_progress_to_stderr_without_colour(run):
    _, finished = run
    assert "params.w" in finished.stdout
    assert "held out" in finished.stdout
    assert "runs/line/report.html" in finished.stdout
    assert "step 3/3" in finished.stderr
    assert "step 3/3" not in finished.stdout
    assert "\x1b" not in finished.stdout + finished.stderr
    assert max(map(len, finished.stdout.splitlines())) <= 120


def test_a_second_run_is_refused_before_anything_is_touched(run):
    folder, _ = run
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs" / "line").iterdir()}
    again = command_here("run", LINE, "--devices", "8", "--steps", "1", cwd=folder)
    assert again.exit_code == 2
    assert again.stderr.startswith("error: the run folder runs/line exists and holds 6 files")
    assert "--force" in again.stderr
    assert "Traceback" not in again.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs" / "line").iterdir()}


@pytest.mark.thorough  # test_interrupt.py ends commands, test_run_faults.py keeps metrics
def test_ctrl_c_keeps_the_metrics_so_far(tmp_path):
    with subprocess.Popen(
        [*OUTLAY, "run", LINE, "--devices", "2", "--steps", "1000000", "--run-folder", "long"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        metrics = tmp_path / "long" / "metrics.jsonl"
        deadline = time.monotonic() + 280
        while not (metrics.exists() and metrics.stat().st_size > 1000):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=280)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert process.returncode == 130
    assert steps == list(range(1, len(steps) + 1))
    assert f"stopped after step {len(steps)} of 1000000; the metrics so far are kept in long/metrics.jsonl" in errors
    assert "Traceback" not in errors


STARTS_TWO = """
import jax, outlay
outlay.simulate(2)
jax.devices()
"""


def test_a_recipe_file_does_not_change_the_devices_that_were_asked_for(run):
    folder, _ = run
    assert len(json.loads((folder / "runs" / "line" / "plan.json").read_text())["mesh"]["device_ids"]) == 4


def test_a_recipe_file_that_starts_jax_with_other_devices_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(STARTS_TWO + ASKS_FOR_TWO)
    failed = outlay_command("show", "mine.py:recipe", "--devices", "4", cwd=tmp_path)
    assert failed.returncode == 2
    assert "outlay.simulate(4) comes too late: JAX has started with 2 cpu devices" in failed.stderr
    assert "mine.py:4 at top level: jax.devices()" in failed.stderr


def test_doctor_fails_when_jax_does_not_start(tmp_path):
    finished = outlay_command("doctor", "--json", cwd=tmp_path, JAX_PLATFORMS="nonsense")
    report = json.loads(finished.stdout)
    assert finished.returncode == 1
    assert "nonsense" in report["failure"]
    assert "unset JAX_PLATFORMS" in report["problems"][-1]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--xla_nonsense=1", "Unknown flag in XLA_FLAGS: --xla_nonsense=1"),
        ("--xla_cpu_enable_fast_math=maybe", "Couldn't interpret value maybe for flag xla_cpu_enable_fast_math"),
    ],
)
def test_the_doctor_survives_flags_with_which_xla_ends_the_process(flags, says, tmp_path):
    finished = outlay_command("doctor", cwd=tmp_path, XLA_FLAGS=flags)
    assert finished.returncode == 1
    assert f"does not start  XLA aborts the process: {says}" in finished.stdout
    assert "XLA_FLAGS holds what this XLA does not accept: correct or remove it" in finished.stdout


# Whoever does not ask before JAX starts ends this process, and what comes after is not printed.
ONE_AFTER_THE_OTHER = """
import sys
from typer.testing import CliRunner
from outlay.cli.main import app

for arguments in sys.argv[1:]:
    done = CliRunner().invoke(app, arguments.split())
    print(done.exit_code, done.stderr)

import outlay

try:
    outlay.mesh(data=-1)
except outlay.errors.BackendError as error:
    print(error)
"""
STARTS_JAX_FIRST = "import jax\n\njax.devices()\n\n\ndef line():\n    pass\n"


@pytest.mark.thorough  # test_xla_flags.py
def test_flags_that_xla_does_not_take_are_named_before_xla_ends_the_process(tmp_path):
    (tmp_path / "mine.py").write_text(STARTS_JAX_FIRST)
    commands = [
        "run digits --processes 2 --devices 2",
        "choose mine.py:line --target h100:1x8",
        "explain mine.py:line --devices 2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, *commands],
        cwd=tmp_path,
        env=environment(XLA_FLAGS="--xla_cpu_enable_fast_mth=true"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message = "XLA_FLAGS holds 1 flag that XLA does not take, so JAX cannot start"
    flag = "--xla_cpu_enable_fast_mth=true: XLA does not know it; did you mean 'xla_cpu_enable_fast_math'?"
    printed = " ".join(done.stdout.split())
    assert printed.count(f"2 error: {message}") == len(commands)
    assert printed.count(f"{message} {flag} fix: correct the flag, or take it out of XLA_FLAGS") == len(commands) + 1
    assert "parse_flags_from_env" not in done.stdout + done.stderr


def test_the_doctor_runs_no_file_of_the_folder_and_looks_for_no_accelerators_that_are_not_there(tmp_path):
    """With the compilers of GPUs and TPUs installed, that search prints tracebacks."""
    (tmp_path / "jax.py").write_text("open('ran', 'w').close()\n")
    # These flags are asked about in a process of their own, which could import the file, too.
    flags = environment(XLA_FLAGS="--xla_cpu_enable_fast_math=true", JAX_PLATFORMS="", JAX_PLATFORM_NAME="")
    command = [sys.executable, "-P", "-m", "outlay", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=flags, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing had before" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_doctor_names_what_had_started_jax(tmp_path):
    command = [forks.python(), "-c", f"import jax; jax.devices()\n{MAIN[1]}", "doctor"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "started by  JAX's backend was started by <string>:1 at top level\n" in done.stdout
