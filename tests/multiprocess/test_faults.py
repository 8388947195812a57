"""Real processes, real signals: whatever happens to one of them, the guard ends all, and the cause is said.

How many seconds that takes is measured elsewhere (benchmarks): here a job that hangs is killed, and its test fails.
"""

import re
import socket
import subprocess
import sys

import psutil
import pytest
from tests import forks
from tests.multiprocess import jobs
from tests.unit.cli.command import environment

from outlay.jobs.exit_codes import LOST
from outlay.launcher.job import free_port

pytestmark = pytest.mark.newest


@pytest.fixture
def mark(tmp_path):
    path = tmp_path / "mark"
    yield path
    _, left = psutil.wait_procs(jobs.left_of(path), timeout=60)  # forks are killed by their server
    for process in left:
        process.kill()
    assert not left, "processes were left behind"


def test_processes_compute_together_and_end_well_though_workers_of_theirs_fail_and_one_takes_longer(mark):
    done = jobs.run(fault="harmless", process=1, mark=mark, forked=False)
    assert done.code == 0, done.stderr
    assert "[1] slept well" in done.stdout
    assert "[0] process 0 of 2: total 2.0" in done.stdout
    assert "[1] process 1 of 2: total 2.0" in done.stdout
    assert len(set(done.pids)) == 2
    assert "process from OUTLAY_PROCESS_ID, number of processes from OUTLAY_NUM_PROCESSES" in done.stderr
    for process in (0, 1):  # the workers were forked
        assert f"[{process}] the worker ended with 1\n" in done.stdout
    assert done.stderr.count("ValueError: a worker's mistake") == 2


@pytest.mark.thorough  # test_verdict.py knows such a wait
@pytest.mark.any_jax  # it waits in Python
def test_a_process_that_waits_for_an_upload_after_the_last_step_is_not_taken_for_one_that_waits_for_the_others(mark):
    done = jobs.run(fault="upload", process=0, mark=mark)
    assert done.code == 0, done.stderr
    assert "[0] the other end says b'done'" in done.stdout


@pytest.mark.any_jax  # before JAX takes part
def test_a_process_that_ends_well_before_it_joined_is_named_at_once(mark):
    done = jobs.run(fault="never", process=1, mark=mark)
    assert done.code == 1
    assert "process 1 of 2 ended, with exit code 0, before outlay.join(), where the others wait for it" in done.stderr


@pytest.mark.parametrize(
    ("process", "fault", "code", "says", "last"),
    [
        pytest.param(
            1,
            "exception",
            13,
            "ValueError, exit code 13",
            "ValueError: a planted mistake",
            marks=pytest.mark.any_jax,
        ),
        # test_verdict.py has the code of an exit; a process of this one ends all as one with an exception does
        pytest.param(0, "code", 7, "SystemExit, exit code 7", "SystemExit: 7", marks=pytest.mark.thorough),
        pytest.param(
            1, "no-text", 13, "NoText, exit code 13", "NoText: <exception str() failed>", marks=pytest.mark.thorough
        ),
        pytest.param(
            0,
            "SIGKILL",
            137,
            "ended by SIGKILL, by a user, or by the system because memory ran out; exit code 137",
            "",
            marks=pytest.mark.any_jax,
        ),
        pytest.param(
            1,
            "SIGKILL",
            137,
            "ended by SIGKILL, by a user, or by the system because memory ran out; exit code 137",
            "",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_process_that_fails_ends_all_and_is_named_last(mark, fault, process, code, says, last):
    # A fork that is killed is known to have ended a moment later than a process, after others have complained.
    done = jobs.run(fault=fault, process=process, mark=mark, forked=fault != "SIGKILL")
    assert done.code == code
    assert f"process {process} of 2 failed first: {says}" in done.stderr
    assert done.stderr.rstrip().endswith(last or says)
    assert "Gloo" not in done.stderr


@pytest.mark.thorough  # as the exceptions above, and in test_exit_hooks.py
@pytest.mark.any_jax  # as the exceptions above
def test_an_exception_in_a_thread_ends_all(mark):
    done = jobs.run(fault="thread", process=1, mark=mark)
    assert (done.code, done.stderr.rstrip().splitlines()[-1]) == (13, "KeyError: 'planted'")


@pytest.mark.any_jax
@pytest.mark.parametrize("process", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_without_a_launcher_a_process_that_ends_early_does_not_hang_the_others(mark, process):
    place = {"OUTLAY_NUM_PROCESSES": "2", "OUTLAY_COORDINATOR": f"127.0.0.1:{free_port()}", "JAX_PLATFORMS": "cpu"}
    command = [forks.python(), jobs.PROGRAM, "early", str(process), str(mark)]
    tasks = [
        subprocess.Popen(
            command, env=environment(**place, OUTLAY_PROCESS_ID=str(number)), stderr=subprocess.PIPE, text=True
        )
        for number in (0, 1)
    ]
    try:
        errors = [task.communicate(timeout=jobs.LONGEST)[1] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [1, 1], errors
    for text in errors:
        assert f"process {process} of 2 on " in text
        assert "ended early, while the others wait for it" in text


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("fault", "code", "when"),
    [
        pytest.param("kill-at-exit", -9, " after its last step", marks=pytest.mark.thorough),
        ("kill-in-jax", -9, " at the end of its program"),
    ],
)
def test_without_a_launcher_a_process_that_is_killed_at_its_end_is_named(mark, fault, code, when):
    """JAX waits five minutes for it at the end, and names nobody."""
    place = {"OUTLAY_NUM_PROCESSES": "2", "OUTLAY_COORDINATOR": f"127.0.0.1:{free_port()}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, jobs.PROGRAM, fault, "1", str(mark)]
    tasks = [
        subprocess.Popen(
            command, env=environment(**place, OUTLAY_PROCESS_ID=str(number)), stderr=subprocess.PIPE, text=True
        )
        for number in (0, 1)
    ]
    try:
        errors = [task.communicate(timeout=jobs.LONGEST)[1] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [LOST, code], errors
    assert f"process 1 of 2 on {socket.gethostname()} has gone without a word{when}" in errors[0]


@pytest.mark.thorough  # as SIGKILL above
@pytest.mark.any_jax  # as SIGKILL above
def test_sigterm_ends_a_process_and_so_all(mark):
    done = jobs.run(fault="SIGTERM", process=1, mark=mark)
    assert done.code == 143
    assert "process 1 of 2 failed first: ended by SIGTERM" in done.stderr


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        pytest.param(0, "early-silent", marks=pytest.mark.any_jax),
        pytest.param(1, "raise-exit", marks=pytest.mark.thorough),
    ],
)
def test_a_process_that_ends_early_does_not_hang_the_others(mark, process, fault):
    """Also where no step is reported, and where its code is not known, since it raises `SystemExit` itself."""
    done = jobs.run(fault=fault, process=process, mark=mark)
    assert done.code == 1
    assert f"process {process} of 2 ended early, while the others wait for it in a collective" in done.stderr
    assert f"process {1 - process} is here:" in done.stderr
    assert "in main" in done.stderr


@pytest.mark.thorough  # as one that ends early, and in test_verdict.py
@pytest.mark.any_jax  # as one that ends early
def test_a_process_that_goes_without_a_word_is_named(mark):
    done = jobs.run(fault="os-exit", process=0, mark=mark)
    assert done.code != 0
    assert done.stderr.splitlines()[-1].startswith(
        "process 0 of 2 ended early, with exit code 0: process 1 ended because of it, "
    )


@pytest.mark.any_jax
@pytest.mark.parametrize("fault", ["SIGSTOP", pytest.param("sleep", marks=pytest.mark.thorough)])
def test_a_stuck_job_is_ended_with_the_stacks_of_all(mark, fault):
    done = jobs.run("--stuck-after", "8", "--start-within", "240", fault=fault, process=1, mark=mark, forked=False)
    assert done.code == 1
    assert "the job is stuck\nprocess 0: step 3 finished, in 'step 4' for" in done.stderr
    assert ("held by a signal (SIGSTOP)" in done.stderr) == (fault == "SIGSTOP")
    assert "process 0 is here:" in done.stderr
    assert "in inject" in done.stderr.partition("process 1 is here:")[2]
    assert "waiting in JAX, as for a collective: process 0; missing there: process 1" in done.stderr


@pytest.mark.some_cases(1)
@pytest.mark.any_jax  # before JAX takes part
@pytest.mark.parametrize(
    ("process", "says"),
    [
        (1, "1 of 2 processes did not come to .* within 3 s of process 0\n  missing: process 1"),
        (0, "process 1 of 2 could not reach process 0 at .* for 3 s: Connection refused"),
    ],
)
def test_a_process_that_does_not_come_is_named(mark, process, says):
    done = jobs.run(fault="missing", process=process, mark=mark)
    assert done.code == 13
    assert re.search(f"JoinError: {says}", done.stderr)


@pytest.mark.thorough  # test_run.py has a run that starts again
@pytest.mark.any_jax  # a job fails in the tests above, and another one starts
def test_a_job_that_fails_once_is_started_again(mark):
    done = jobs.run("--max-restarts", "2", fault="once", process=1, mark=mark)
    assert done.code == 0
    assert "restart 1 of 2" in done.stderr
    assert "process 0 of 2: total 2.0, restart 1" in done.stdout


KINDS = {
    "program": r"  program: [0-9a-f]{12} \(.*/differing.py:\d+\), there [0-9a-f]{12} \(.*/differing.py:\d+\)\n"
    r"      \+ %0 = stablehlo.sine .*\n  fix: what is traced must not depend on the process",
    "data": r"  data: batch is float32\[4, 3\], there float32\[4, 2\]\n(.*\n)  fix: state and batch are global",
    "config": r"  config: rule 2 is w  P\(\), there w  P\('data'\)\n(.*\n)  fix: start all processes with the same",
    "setting": r"  program: .*\n    setting of JAX: jax_use_shardy_partitioner is False, there True\n"
    r"  fix: start all processes with the same",
    "key": r"  config: key is \[0 7\], there \[0 0\]\n  fix: start all processes with the same",
}


@pytest.fixture(scope="module")
def differed(tmp_path_factory):
    """A job whose processes run what they agree about, and then try one thing after the other that they do not."""
    mark = tmp_path_factory.mktemp("differed") / "mark"
    done = jobs.run(program=jobs.DIFFERING, fault=",".join(["none", *KINDS]), process=1, mark=mark)
    assert not jobs.left_of(mark), "processes were left behind"
    return done


def test_processes_that_agree_run_their_program(differed):
    for process in (0, 1):
        assert lines_of(differed, process)[0] == "the sum is 8.0"
    assert differed.stdout.count("the sum is") == 2


def lines_of(done, process):
    prefix = f"[{process}] "
    return [line.removeprefix(prefix) for line in done.stdout.splitlines() if line.startswith(prefix)]


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_would_run_different_things_are_told_all_of_them(differed, kind):
    assert differed.code == 13
    for process in (0, 1):
        output = (
            "\n".join(lines_of(differed, process))
            .partition(f"{kind}: this is what it is told:\n")[2]
            .partition(": this is what")[0]
        )
        assert output.startswith("the processes are about to run different programs")
        assert re.search(rf"  process 1 against process 0:\n  {KINDS[kind]}", output), output
    assert "ProgramError: the processes are about to run different programs" in differed.stderr


@pytest.mark.parametrize("process", [pytest.param(0, marks=pytest.mark.thorough), 1])
@pytest.mark.any_jax  # it waits in Outlay
def test_a_process_that_does_not_come_to_the_first_run_is_named(mark, process):
    done = jobs.run(program=jobs.DIFFERING, fault="missing", process=process, mark=mark)
    assert done.code == 13
    assert re.search(
        rf"ProgramError: process {1 - process} has waited 4 s to run its program \(.*differing.py:\d+\), and 1 of 2 "
        rf"processes have not arrived\n  missing: process {process}\n  fix: ",
        done.stderr,
    )


@pytest.mark.thorough  # as one that ends early
@pytest.mark.any_jax
def test_a_process_that_ends_before_the_first_run_does_not_hang_the_others(mark):
    done = jobs.run(program=jobs.DIFFERING, fault="early", process=1, mark=mark)
    assert done.code == 1
    assert "process 1 of 2 ended early, while the others wait for it" in done.stderr
    assert "in agree" in done.stderr
