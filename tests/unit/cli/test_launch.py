import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from tests.unit.cli.command import OUTLAY, command_here, environment, outlay_command

pytestmark = pytest.mark.processes

LONGEST = 280  # seconds after which a launcher hangs


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


@pytest.fixture
def start(tmp_path):
    """Starts jobs; none outlives its test, and no pipe to it stays open, whatever fails."""
    jobs = []

    def start(*arguments, **streams):
        command, env = [*OUTLAY, "launch", *arguments], environment(TMPDIR=str(tmp_path))
        jobs.append(subprocess.Popen(command, cwd=tmp_path, env=env, text=True, **streams))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.communicate()


def until(happened):
    give_up = time.monotonic() + LONGEST
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_process_started_in_a_session_of_its_own_ends_with_the_launcher(start, number):
    worker = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    foreign = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    code = f"import subprocess, sys, time; print({worker}.pid, flush=True); time.sleep(600)"
    job = start("-n", "1", *python(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pid = int(job.stdout.readline().split()[1])
    job.send_signal(number)
    job.communicate(timeout=LONGEST)
    until(lambda: not is_running(pid))
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()


FLOOD = "import os\nwhile True: print('y' * 99)"


def test_a_failure_is_noticed_though_nobody_reads_the_output(start, tmp_path):
    code = f"import os; open('pid', 'w').write(str(os.getpid()))\n{FLOOD}"
    job = start("-n", "1", *python(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    time.sleep(1)  # so that all pipes are full
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert job.wait(LONGEST) == 137
    errors = job.stderr.read()
    assert "process 0 of 1 failed first: ended by SIGKILL" in errors
    assert "nobody reads the rest of the output; it is in" in errors
    job.communicate()


def test_a_launcher_whose_output_nobody_reads_can_be_stopped(start):
    job = start("-n", "1", *python(FLOOD), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job.stdout.readline()
    time.sleep(1)
    job.terminate()
    assert job.wait(LONGEST) == 143
    assert "stopped by SIGTERM: all processes ended" in job.stderr.read()
    job.communicate()


def test_a_reader_that_has_had_enough_ends_the_job_as_it_would_any_command(start):
    job = start("-n", "1", *python(FLOOD), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout.readline() == f"[0] {'y' * 99}\n"
    job.stdout.close()
    assert job.wait(LONGEST) == 128 + signal.SIGPIPE
    assert job.stderr.read() == "stopped: the reader of the output has gone; all processes ended\n"
    job.stderr.close()


def test_a_slow_reader_gets_all_of_a_job_that_ended_well(start):
    job = start("-n", "1", *python("print('y' * 99 + chr(10), end='') or print('x' * 3_000_000)"), stdout=-1)
    time.sleep(4)  # longer than a launcher waits after a failure
    shown = job.communicate(timeout=LONGEST)[0]
    assert job.returncode == 0
    assert shown.replace("\n[0] ", "").count("x") == 3_000_000


def test_a_suspended_job_goes_on_and_is_not_stuck(start):
    code = "import time, os\nfor _ in range(25): print(os.getpid(), flush=True); time.sleep(0.2)"
    job = start("-n", "1", "--stuck-after", "8", *python(code), stdout=subprocess.PIPE)
    pid = int(job.stdout.readline().split()[1])
    for process in (job.pid, pid):
        os.kill(process, signal.SIGSTOP)
    time.sleep(9)
    for process in (job.pid, pid):
        os.kill(process, signal.SIGCONT)
    time.sleep(0.3)
    os.kill(pid, signal.SIGSTOP)  # and where the launcher runs on
    time.sleep(9)
    os.kill(pid, signal.SIGCONT)
    shown, _ = job.communicate(timeout=LONGEST)
    assert (job.returncode, shown.count("\n")) == (0, 24)


BEATS = """
import sys, time
from outlay.jobs.heartbeat import beat, start_beating
from outlay.jobs.job_folder import own_job_folder
start_beating(own_job_folder(), 0)
beat(5, "step 6")
time.sleep(0.5)
sys.exit(3)
"""


def test_a_job_that_gets_no_further_is_not_started_for_ever(tmp_path):
    done = launch(tmp_path, "-n", "1", "--max-restarts", "9", *python(BEATS))
    assert done.returncode == 3
    assert "restart 2 of 9, in 1 s" in done.stderr
    assert "restart 3 of 9" not in done.stderr
    assert done.stderr.endswith("no step after 5 was taken in 2 restarts, so another would not help\n")


def test_the_launcher_imports_no_jax(tmp_path):
    done = launch(tmp_path, "-n", "1", *python("1 / 0"), PYTHONPROFILEIMPORTTIME="1")
    own = [line for line in done.stderr.splitlines() if not line.startswith("[0]")]
    assert any("outlay.launcher.run_job" in line for line in own)
    assert not [line for line in own if line.rpartition("|")[2].strip().partition(".")[0] in ("jax", "jaxlib", "numpy")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["-n", "2", "python", "train.py"],
            "the command to run must come after two dashes, as in: outlay launch -n 2 --",
        ),
        (["-n", "2", "--"], "there is no command to run\n  fix: outlay launch -n 2 -- python train.py"),
        (["--", "python"], "Missing option '-n'"),
        (["-n", "0", "--", "python"], "0 processes cannot be started; the least is 1"),
        (["-n", "1", "--devices-per-process", "0", "--", "python"], "0 devices per process cannot be simulated"),
        (["-n", "1", "--", "no-such-command"], "and PATH has no such command\n  fix: install it, or give its path"),
        (["-n", "9999999", "--", "python"], "9999999 processes need a port each, and this machine has"),
        (["-n", "1", "--", "./train.py"], "fix: outlay launch ... -- python ./train.py"),
        (["-n", "1", "--stuck-after", "never", "--", "python"], "'never' is neither a number of seconds, 0.1 or more"),
    ],
)
def test_commands_that_cannot_start_are_refused(tmp_path, arguments, says):
    (tmp_path / "train.py").write_text("")
    done = command_here("launch", *arguments, cwd=tmp_path)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_refused_only_if_it_was_asked_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command_here("launch", "-n", "1", "--port", str(port), *python(""), cwd=tmp_path)
    assert done.exit_code == 2
    assert f"port {port} cannot be used for the coordinator: Address already in use\n  fix: drop --port" in done.stderr


def test_simulated_devices_without_the_cpu_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    done = command_here("launch", "-n", "1", "--devices-per-process", "2", *python(""), cwd=tmp_path)
    assert done.exit_code == 2
    assert "JAX_PLATFORMS=cuda excludes the CPU\n  fix: unset JAX_PLATFORMS" in done.stderr
