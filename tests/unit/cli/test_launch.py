import socket
import sys

import psutil
import pytest
from tests.unit.cli.command import outlay_command


def launch(tmp_path, *arguments, **variables):
    return outlay_command("launch", *arguments, cwd=tmp_path, TMPDIR=str(tmp_path), **variables)


def python(code):
    return ["--", sys.executable, "-c", code]


def test_lines_of_all_processes_carry_their_number(tmp_path):
    code = "import os, sys; n = os.environ['OUTLAY_PROCESS_ID']; print('out', n); print('err', n, file=sys.stderr)"
    done = launch(tmp_path, "-n", "2", *python(code))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(done.stderr.splitlines()) == ["[0] err 0", "[1] err 1"]


def test_the_command_keeps_its_own_options(tmp_path):
    done = launch(tmp_path, "-n", "1", *python("import sys; print(sys.argv[1:])"), "-n", "7", "--", "--port")
    assert done.stdout == "[0] ['-n', '7', '--', '--port']\n"


def test_simulated_devices_are_set_before_the_program_starts(tmp_path):
    code = "import os; print(os.environ['OUTLAY_DEVICES_PER_PROCESS'], os.environ['NPROC'], os.environ['XLA_FLAGS'])"
    done = launch(
        tmp_path, "-n", "1", "--devices-per-process", "4", *python(code), XLA_FLAGS="--xla_dump_to=x", NPROC="1"
    )
    assert int(done.stdout.split()[2]) >= 16
    assert done.stdout.startswith("[0] 4 ")
    assert "--xla_dump_to=x --xla_cpu_collective" in done.stdout


def test_a_program_that_never_joins_fails_with_its_last_words(tmp_path):
    code = "import os, time; n = os.environ['OUTLAY_PROCESS_ID']; time.sleep(60) if n == '0' else print(1 / 0)"
    done = launch(tmp_path, "-n", "2", *python(code))
    assert done.returncode == 1
    assert "process 1 of 2 failed first: exit code 1\nTraceback (most recent call last)" in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_what_a_process_started_ends_with_it(tmp_path):
    worker = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    done = launch(tmp_path, "-n", "1", *python(f"import subprocess, sys; print(subprocess.Popen({worker}).pid)"))
    pid = int(done.stdout.split()[1])
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_launcher_imports_no_jax(tmp_path):
    done = launch(tmp_path, "-n", "1", *python("1 / 0"), PYTHONPROFILEIMPORTTIME="1")
    own = [line for line in done.stderr.splitlines() if not line.startswith("[0]")]
    assert any("outlay.launch.run_job" in line for line in own)
    assert not [line for line in own if line.rpartition("|")[2].strip().partition(".")[0] in ("jax", "jaxlib", "numpy")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["-n", "2", "python", "train.py"],
            "the command to run belongs behind two dashes, as in: outlay launch -n 2 --",
        ),
        (["-n", "2", "--"], "there is no command to run\n  cure: outlay launch -n 2 -- python train.py"),
        (["--", "python"], "Missing option '-n'"),
        (["-n", "0", "--", "python"], "0 processes cannot be started; at least 1 can"),
        (["-n", "1", "--devices-per-process", "0", "--", "python"], "0 devices per process cannot be simulated"),
        (["-n", "1", "--", "no-such-command"], "none of that name on PATH\n  cure: install it, or give its path"),
        (["-n", "9999999", "--", "python"], "9999999 processes need a port each, and this machine hands out"),
        (["-n", "1", "--", "./train.py"], "cure: outlay launch ... -- python ./train.py"),
    ],
)
def test_what_cannot_be_started_is_refused(tmp_path, arguments, says):
    (tmp_path / "train.py").write_text("")
    done = launch(tmp_path, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_refused_only_if_it_was_asked_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch(tmp_path, "-n", "1", "--port", str(port), *python(""))
    assert done.returncode == 2
    assert (
        f"port {port} cannot be used for the coordinator: Address already in use\n  cure: leave out --port"
        in done.stderr
    )


def test_simulated_devices_without_the_cpu_are_refused(tmp_path):
    done = launch(tmp_path, "-n", "1", "--devices-per-process", "2", *python(""), JAX_PLATFORMS="cuda")
    assert done.returncode == 2
    assert "JAX_PLATFORMS=cuda leaves the CPU out\n  cure: unset JAX_PLATFORMS" in done.stderr
