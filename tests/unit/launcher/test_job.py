import resource
import socket

import pytest

from outlay.core.error_types import LaunchError
from outlay.jobs.process_info import PORTS
from outlay.launcher import job
from outlay.launcher.job import LOOPBACK, assign_gpus, check_limits, free_port


@pytest.fixture
def ports(tmp_path):
    file = tmp_path / "ip_local_port_range"
    file.write_text("40000\t40999\n")
    return file


@pytest.fixture
def files(monkeypatch):
    """Limits of open files, soft and hard; what is set is kept from this process."""
    limits = {"soft": 1024, "hard": 4096}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.update(soft=pair[0], hard=pair[1]))
    return limits


def test_more_processes_than_ports_are_refused(ports, files):
    with pytest.raises(
        LaunchError, match=r"1001 processes .* has 1000 of them \(.*\)\n  fix: start at most 1000 processes"
    ):
        check_limits(1001, ports)


def test_more_processes_than_open_files_are_refused(ports, files):
    files.update(soft=100, hard=100)
    with pytest.raises(
        LaunchError, match=r"19 processes need 102 open files .* 100 are allowed\n  fix: start at most 18 processes"
    ):
        check_limits(19, ports)


def test_the_launcher_opens_as_many_files_as_it_needs_and_may(ports, files):
    check_limits(480, ports)
    assert files["soft"] == 1024
    check_limits(1000, ports)
    assert (files["soft"], files["hard"]) == (2064, 4096)


def test_where_the_system_does_not_say_any_port_will_do(tmp_path, files):
    check_limits(1, tmp_path / "nothing")
    files.update(soft=1 << 20, hard=1 << 20)
    with pytest.raises(LaunchError, match="64513 processes need a port each, and this machine has 64512 of them"):
        check_limits(64513, tmp_path / "nothing")


@pytest.fixture
def four(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_each_process_gets_its_own(four):
    assert assign_gpus(2, {}, four) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,10"}]


def test_gpus_that_the_user_hides_stay_hidden(four):
    shown = {"CUDA_VISIBLE_DEVICES": "2,10"}
    assert assign_gpus(2, shown, four) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "10"}]


@pytest.mark.parametrize("environment", [{"JAX_PLATFORMS": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_nothing_is_given_where_gpus_are_not_used(four, environment):
    assert assign_gpus(3, environment, four) == [{}, {}, {}]


def test_a_process_alone_keeps_all(four):
    assert assign_gpus(1, {}, four) == [{}]


@pytest.mark.parametrize("num_processes", [3, 8])
def test_gpus_that_cannot_be_shared_out_are_refused(four, num_processes):
    with pytest.raises(
        LaunchError, match=rf"4 GPUs \(0, 1, 2, 10\) .* {num_processes} processes\n  fix: -n 1 or 2 or 4;"
    ):
        assign_gpus(num_processes, {}, four)


def test_the_port_of_a_job_is_none_that_the_system_hands_out_before_the_job_uses_it(monkeypatch):
    assert free_port() in PORTS
    with socket.create_server((LOOPBACK, free_port())) as server:
        in_use = server.getsockname()[1]
        monkeypatch.setattr(job, "PORTS", [in_use])
        monkeypatch.setattr(job, "NUM_TRIES", 1)
        assert free_port() not in (0, in_use)
