import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from outlay.core.errors import JoinError
from outlay.launch.free_port import free_port
from outlay.launch.meet import meet
from outlay.launch.place_in_job import Place


def places(num, *processes, numbers=None):
    port = free_port()
    return [Place(process, (numbers or {}).get(i, num), f"127.0.0.1:{port}") for i, process in enumerate(processes)]


def outcomes(found, timeout):
    """What `meet` gives each, or the error it raises."""

    def one(place):
        try:
            return meet(place, timeout)
        except JoinError as error:
            return str(error)

    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(one, found))


def test_all_learn_the_hosts_of_all():
    assert outcomes(places(3, 0, 1, 2), 20) == [(socket.gethostname(),) * 3] * 3


def test_a_missing_process_is_named_in_all_that_came():
    first, second = outcomes(places(4, 0, 2), 1)
    assert "2 of 4 processes have not come" in first
    assert "within 1 s of process 0\n  missing: process 1, 3\n  cure: " in first
    assert first == second


def test_a_missing_coordinator_is_named():
    (only,) = outcomes(places(2, 1), 1)
    assert "process 1 of 2 could not reach process 0 at 127.0.0.1:" in only
    assert "for 1 s: Connection refused" in only


def test_a_host_that_does_not_resolve_is_named():
    (only,) = outcomes([Place(1, 2, "no-such-host.invalid:4000", origin={"coordinator": "OUTLAY_COORDINATOR"})], 0.3)
    assert "process 1 of 2 could not find the host 'no-such-host.invalid' of process 0 for 0.3 s: " in only
    assert "\n  coordinator from OUTLAY_COORDINATOR\n  cure: a name that this machine can resolve" in only


def test_two_processes_of_one_number_are_told():
    found = outcomes(places(3, 0, 1, 1), 10)
    assert all("two processes say that they are process 1 of 3" in text for text in found)


def test_processes_that_disagree_about_their_number_are_told():
    found = outcomes(places(2, 0, 1, numbers={1: 3}), 10)
    assert all("process 1 on" in text and "says 3, process 0 on" in text and "says 2" in text for text in found)


def test_a_port_that_is_taken_is_refused():
    (place,) = places(2, 0)
    with socket.create_server(place.address), pytest.raises(JoinError, match=r"cannot listen at .*already in use"):
        meet(place, 1)


def test_strangers_do_not_count():
    found = places(2, 0, 1)

    def stranger():
        for _ in range(200):
            try:
                with socket.create_connection(found[0].address, timeout=1) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return
            except OSError:
                threading.Event().wait(0.02)

    thread = threading.Thread(target=stranger)
    thread.start()
    first = ThreadPoolExecutor(1).submit(meet, found[0], 20)
    thread.join()
    assert meet(found[1], 20) == first.result()
