import jax
import pytest

from outlay.devices.mesh_info import host_of
from outlay.jobs import current_job
from outlay.jobs.current_job import Joined, host_number, remember


@pytest.fixture
def on_hosts(monkeypatch):
    def join(*hosts):
        monkeypatch.setattr(current_job, "_joined", None)
        remember(Joined(0, len(hosts), "b:1", hosts))

    return join


def test_processes_of_one_machine_are_on_one_host(on_hosts):
    on_hosts("b", "b", "a", "a")
    assert [host_number(process) for process in range(4)] == [0, 0, 1, 1]


def test_a_device_is_on_the_host_of_its_process(on_hosts):
    class OfProcess:
        platform = "gpu"
        client = jax.devices()[0].client

        def __init__(self, process_index):
            self.process_index = process_index

    on_hosts("b", "b", "a")
    assert [host_of(OfProcess(process)) for process in range(3)] == [0, 0, 1]


def test_a_process_alone_exchanges_no_hosts(on_hosts):
    on_hosts()
    assert host_number(0) is None
    assert host_of(jax.devices()[0]) == 0
