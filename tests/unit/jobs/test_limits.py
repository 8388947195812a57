import resource

import pytest

from outlay.core.error_types import LaunchError
from outlay.jobs.job import check_limits


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
    with pytest.raises(LaunchError, match=r"1001 processes .* hands out 1000 \(.*\)\n  fix: 1000 processes at most"):
        check_limits(1001, ports)


def test_more_processes_than_open_files_are_refused(ports, files):
    files.update(soft=100, hard=100)
    with pytest.raises(LaunchError, match=r"19 processes need 102 open files .* 100 are allowed\n  fix: 18 processes"):
        check_limits(19, ports)


def test_the_launcher_opens_as_many_files_as_it_needs_and_may(ports, files):
    check_limits(480, ports)
    assert files["soft"] == 1024
    check_limits(1000, ports)
    assert (files["soft"], files["hard"]) == (2064, 4096)


def test_where_the_system_does_not_say_any_port_will_do(tmp_path, files):
    check_limits(1, tmp_path / "nothing")
    files.update(soft=1 << 20, hard=1 << 20)
    with pytest.raises(LaunchError, match="64513 processes need a port each, and this machine hands out 64512"):
        check_limits(64513, tmp_path / "nothing")
