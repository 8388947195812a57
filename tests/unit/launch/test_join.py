import jax
import pytest

from outlay.core.errors import BackendStartedError, JoinError
from outlay.launch import joined
from outlay.launch.join import join


@pytest.fixture(autouse=True)
def not_joined(monkeypatch):
    monkeypatch.setattr(joined, "_joined", None)


def test_a_process_that_nobody_started_with_others_is_alone():
    assert (join().process, join().num_processes, join().hosts) == (0, 1, ())


def test_one_process_is_alone_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert join(num_processes=1).num_processes == 1


@pytest.mark.parametrize("given", [{"process": 0}, {"num_processes": 2, "coordinator": "a:1"}])
def test_arguments_that_say_it_by_half_are_refused(given):
    with pytest.raises(JoinError, match=r"join\(\) was given .*=.*, but not .*\n  cure: give all three"):
        join(**given)


def test_too_late_to_join():
    jax.devices()
    with pytest.raises(
        BackendStartedError, match=r"too late.* process 1 of 2\n.*\n  cure: move outlay.join\(\) above it"
    ):
        join(process=1, num_processes=2, coordinator="127.0.0.1:1")
