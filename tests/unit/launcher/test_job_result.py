import signal
from dataclasses import dataclass

import pytest

from outlay.jobs.exit_codes import is_echo
from outlay.jobs.job_folder import Failure, JobFolder
from outlay.jobs.verdict import Kind, Verdict
from outlay.launcher.console import OutputConsole
from outlay.launcher.job_result import after_failure, is_echo_of_another, never_joined, stuck, succeeded
from outlay.launcher.merged_output import MergedOutput

FATAL = "F1122 client.h:80] Terminating process because the JAX distributed service detected fatal errors."


@dataclass
class Ended:
    number: int
    exit_code: int | None


@pytest.fixture
def output(tmp_path):
    made = MergedOutput(3, tmp_path / "output.log", OutputConsole())
    yield made
    made.close()


def test_who_is_held_by_a_signal_is_to_blame_not_who_gave_up_on_it(tmp_path, output):
    output.add(0, "stderr", [FATAL, *["    @     0x7fc3a6d0b5 (unknown)"] * 20])
    processes = [Ended(0, -signal.SIGABRT), Ended(1, -signal.SIGKILL)]
    assert is_echo_of_another(processes[0], JobFolder(tmp_path), output)
    ending = after_failure(Verdict(Kind.FAILED, (1,), 0), processes, JobFolder(tmp_path), output, held=[1])
    assert ending.text.splitlines()[-1] == (
        "process 1 of 2 gave no sign of life, held by a signal (SIGSTOP): process 0 ended because of it, ended by "
        "SIGABRT; exit code 134"
    )
    assert "failed first" not in ending.text
    assert ending.exit_code == 134


def test_who_ended_early_is_to_blame_not_who_lost_it(tmp_path, output):
    output.add(0, "stderr", [FATAL])
    processes = [Ended(0, -signal.SIGABRT), Ended(1, 0)]
    ending = after_failure(Verdict(Kind.FAILED, (1,), 0), processes, JobFolder(tmp_path), output)
    assert ending.text.splitlines()[-1] == (
        "process 1 of 2 ended early, with exit code 0: process 0 ended because of it, ended by SIGABRT; exit code 134"
    )
    assert "failed first" not in ending.text


def test_a_failure_of_its_own_is_not_put_on_one_that_is_held(tmp_path, output):
    folder = JobFolder(tmp_path)
    folder.write_failure(0, Failure(1.0, "ValueError", "mine", "Traceback\nValueError: mine\n", 13))
    processes = [Ended(0, 13), Ended(1, None)]
    assert not is_echo_of_another(processes[0], folder, output)
    ending = after_failure(Verdict(Kind.FAILED, (0,), 0), processes, folder, output, held=[1])
    assert "process 0 of 2 failed first: ValueError, exit code 13" in ending.text
    assert "SIGSTOP" not in ending.text


def test_one_that_the_launcher_ended_while_it_said_why_it_fails_ends_with_its_own_code(tmp_path, output):
    folder = JobFolder(tmp_path)
    folder.write_failure(0, Failure(1.0, "ValueError", "mine", "Traceback\nValueError: mine\n", 13))
    processes = [Ended(0, -signal.SIGTERM), Ended(1, -signal.SIGTERM)]
    ending = after_failure(Verdict(Kind.FAILED, (0,), 0), processes, folder, output)
    assert "process 0 of 2 failed first: ValueError, exit code 13" in ending.text
    assert ending.exit_code == 13


def test_one_that_the_launcher_ended_while_it_said_that_it_lost_another_is_not_to_blame(tmp_path, output):
    folder = JobFolder(tmp_path)
    lost = "Gloo AllGather failed: Connection closed by peer"
    folder.write_failure(0, Failure(1.0, "ValueError", lost, f"Traceback\nValueError: {lost}\n", 13))
    assert is_echo_of_another(Ended(0, -signal.SIGTERM), folder, output)
    assert not is_echo_of_another(Ended(1, -signal.SIGTERM), folder, output)


def test_a_command_that_only_says_that_another_process_has_gone_is_not_to_blame(tmp_path, output):
    folder = JobFolder(tmp_path)
    output.add(0, "stderr", ["error: another process has gone: Gloo AllGather failed: Connection reset by peer"])
    folder.write_failure(0, Failure(1.0, "SystemExit", "2", "Traceback\nSystemExit: 2\n", 2))
    processes = [Ended(0, 2), Ended(1, -signal.SIGKILL)]
    assert [is_echo_of_another(one, folder, output) for one in processes] == [True, False]
    ending = after_failure(Verdict(Kind.FAILED, (1,), 1), processes, folder, output)
    assert "process 1 of 2 failed first: ended by SIGKILL" in ending.text
    assert ending.exit_code == 137


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        ([0, 2], "waiting in JAX, as for a collective: processes 0, 2; missing there: process 1"),
        ([0, 1, 2], "all wait in JAX, but not for the same collective"),
    ],
)
def test_who_waits_for_whom_in_a_stuck_job_is_said(waiting, says):
    processes = [Ended(number, None) for number in range(3)]
    ending = stuck(
        processes, dict.fromkeys(range(3), "in 'step 4' for 300 s"), dict.fromkeys(range(3), "File"), waiting
    )
    assert says in ending.text
    assert ending.text.endswith("or --stuck-after off; before the first step, --start-within SECONDS\n")
    assert ending.exit_code == 1


def test_processes_that_never_joined_are_all_named():
    processes = [Ended(0, None), Ended(1, 0), Ended(2, 0)]
    text = never_joined(processes, processes[1:]).text
    assert text.startswith(
        "processes 1, 2 of 3 ended, with exit code 0, before outlay.join(), where the others wait for them"
    )


def test_a_job_that_stopped_on_request_says_so_with_its_exit_code():
    assert succeeded([Ended(0, 0), Ended(1, 0)]).exit_code == 0
    stopped = succeeded([Ended(0, 75), Ended(1, 75)])
    assert (stopped.exit_code, stopped.is_failure) == (75, False)


@pytest.mark.parametrize(
    "text",
    [
        "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:18316",
        "F client.h:86] Terminating process because the JAX distributed service detected fatal errors.",
        "UNAVAILABLE: Socket closed",
        "Shutdown barrier has failed. Barrier result: 'DEADLINE_EXCEEDED'",
    ],
)
def test_what_the_others_say_when_a_process_has_gone(text):
    assert is_echo(text)


@pytest.mark.parametrize("text", ["a planted mistake", "No space left on device", "RESOURCE_EXHAUSTED: Out of memory"])
def test_what_a_process_says_for_itself(text):
    assert not is_echo(text)
