import jax
import pytest

from outlay.devices.mesh_info import host_of, simulate_hosts


@pytest.fixture
def hosts_of_two():
    simulate_hosts(2)
    yield
    simulate_hosts(None)


def test_a_host_is_a_process():
    assert [host_of(device) for device in jax.devices()] == [device.process_index for device in jax.devices()]


def test_pretended_hosts_hold_neighbours(hosts_of_two):
    assert [host_of(device) for device in jax.devices()] == [0, 0, 1, 1, 2, 2, 3, 3]
