import os
import subprocess

import jax
import pytest
from tests import forks
from tests.unit.cli.command import environment

from outlay.core.error_types import BackendStartedError, JoinError
from outlay.jobs import current_job, process_info
from outlay.jobs.join import _key, _seconds, join
from outlay.jobs.process_info import read_process_info
from outlay.launcher.job import free_port


@pytest.fixture(autouse=True)
def not_joined(monkeypatch):
    monkeypatch.setattr(current_job, "_joined", None)


def test_a_process_that_nobody_started_with_others_is_alone():
    assert (join().process, join().num_processes, join().hosts) == (0, 1, ())


def test_one_process_is_alone_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert join(num_processes=1).num_processes == 1


@pytest.mark.parametrize("given", [{"process": 0}, {"num_processes": 2, "coordinator": "a:1"}])
def test_arguments_that_say_it_by_half_are_refused(given):
    with pytest.raises(JoinError, match=r"join\(\) was given .*=.*, but not .*\n  fix: give all three"):
        join(**given)


def test_too_late_to_join():
    jax.devices()
    with pytest.raises(
        BackendStartedError, match=r"too late.* process 1 of 2\n.*\n  fix: move outlay.join\(\) above it"
    ):
        join(process=1, num_processes=2, coordinator="127.0.0.1:1")


AFTER_JAX = """
import jax, outlay
jax.distributed.initialize("127.0.0.1:{port}", 1, 0)
try:
    outlay.join(process=0, num_processes=2, coordinator="127.0.0.1:{port}")
except outlay.errors.JoinError as error:
    print(error)
"""


@pytest.mark.processes
def test_after_jax_has_connected_the_processes_itself_it_says_so():
    program = AFTER_JAX.format(port=free_port())
    done = subprocess.run(
        [forks.python(), "-c", program], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert "join() comes after jax.distributed.initialize(), which has connected process 0 of 2 already" in done.stdout
    assert "fix: take jax.distributed.initialize() out; outlay.join() calls it" in done.stdout


LAUNCHED = {"OUTLAY_PROCESS_ID": "1", "OUTLAY_NUM_PROCESSES": "2", "OUTLAY_COORDINATOR": "127.0.0.1:1"}


def test_what_a_process_starts_does_not_take_its_place(monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(process_info.JOINED, f"{os.getppid()} {_key(read_process_info(LAUNCHED))}")
    assert join().num_processes == 1
    monkeypatch.setattr(current_job, "_joined", None)
    assert join(process=1, num_processes=2, coordinator="127.0.0.1:1").num_processes == 1


@pytest.mark.parametrize("changed", [{"OUTLAY_COORDINATOR": "127.0.0.1:2"}, {"OUTLAY_PROCESS_ID": "0"}])
def test_a_job_that_a_process_starts_is_another_one(monkeypatch, changed):
    jax.devices()
    for name, value in (LAUNCHED | changed).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(process_info.JOINED, f"{os.getppid()} {_key(read_process_info(LAUNCHED))}")
    with pytest.raises(BackendStartedError):  # so it would have joined
        join()


@pytest.mark.parametrize(
    ("name", "given", "environment", "seconds"),
    [
        ("stuck_after", None, {}, None),
        ("stuck_after", None, {"OUTLAY_STUCK_AFTER": "off"}, 0.0),
        ("stuck_after", None, {"OUTLAY_STUCK_AFTER": "90"}, 90.0),
        ("stuck_after", 5.0, {"OUTLAY_STUCK_AFTER": "90"}, 5.0),
        ("lost_after", None, {"OUTLAY_LOST_AFTER": "30"}, 30.0),
    ],
)
def test_limits_are_given_or_set(monkeypatch, name, given, environment, seconds):
    for variable, text in environment.items():
        monkeypatch.setenv(variable, text)
    assert _seconds(name, given) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "off"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv(process_info.LOST_AFTER, text)
    with pytest.raises(JoinError, match=f"OUTLAY_LOST_AFTER={text} is not a number of seconds\n  fix: "):
        _seconds("lost_after", None)
