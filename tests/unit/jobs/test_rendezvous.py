import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from outlay.core.error_types import JoinError
from outlay.jobs import connection, rendezvous
from outlay.jobs.process_info import ProcessInfo
from outlay.launcher.job import free_port


@pytest.fixture(autouse=True)
def hangs_up(monkeypatch):
    """The lines stay open when processes have met; here nobody needs them."""
    opened = []

    class Remembered(connection.Connection):
        def __init__(self, connection):
            super().__init__(connection)
            opened.append(self)

    monkeypatch.setattr(rendezvous, "Connection", Remembered)
    yield
    for line in opened:
        line.close()


def infos(num, *processes, numbers=None, **facts):
    port = free_port()
    return [
        ProcessInfo(process, (numbers or {}).get(i, num), f"127.0.0.1:{port}", **facts)
        for i, process in enumerate(processes)
    ]


def outcomes(result, timeout):
    """The hosts that `meet` gives each, or the error it raises."""

    def one(info):
        try:
            met = rendezvous.meet(info, timeout)
        except JoinError as error:
            return str(error)
        return met.hosts

    with ThreadPoolExecutor(len(result)) as pool:
        return list(pool.map(one, result))


def test_all_learn_the_hosts_of_all():
    assert outcomes(infos(3, 0, 1, 2), 20) == [(socket.gethostname(),) * 3] * 3


def test_all_learn_a_number_that_is_new_each_time():
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda info: rendezvous.meet(info, 20), infos(2, 0, 1, secret="s"))
    assert first.nonce == second.nonce
    assert len(first.nonce) == 32
    assert first.bind == first.info.coordinator


def test_a_missing_process_is_named_in_all_that_came():
    first, second = outcomes(infos(4, 0, 2), 1)
    assert "2 of 4 processes did not come" in first
    assert "within 1 s of process 0\n  missing: process 1, 3\n  fix: " in first
    assert first == second


def test_a_missing_coordinator_is_named():
    (only,) = outcomes(infos(2, 1), 1)
    assert "process 1 of 2 could not reach process 0 at 127.0.0.1:" in only
    assert "for 1 s: Connection refused" in only
    assert "\n  127.0.0.1 is this machine, " in only


def test_a_host_that_does_not_resolve_is_named():
    (only,) = outcomes(
        [ProcessInfo(1, 2, "no-such-host.invalid:4000", origin={"coordinator": "OUTLAY_COORDINATOR"})], 0.3
    )
    assert "process 1 of 2 could not find the host 'no-such-host.invalid' of process 0 for 0.3 s: " in only
    assert "\n  coordinator from OUTLAY_COORDINATOR\n  fix: a name that this machine can resolve" in only


def test_one_that_waits_says_so_on_the_way(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "_NOTE_AFTER", 0.1)
    outcomes(infos(2, 1), 0.5)
    assert capsys.readouterr().err.startswith("waiting: process 1 of 2 could not reach process 0 at 127.0.0.1:")


@pytest.mark.parametrize(
    ("coordinator", "says"),
    [
        (
            "no-such-host.invalid:4000",
            "process 0 cannot resolve the host 'no-such-host.invalid', at which it is to wait",
        ),
        ("192.0.2.1:4000", "process 0 runs on .*, and 192.0.2.1:4000 is not an address of that machine"),
    ],
)
def test_process_0_says_at_once_that_it_cannot_be_there(coordinator, says):
    with pytest.raises(JoinError, match=says):
        rendezvous.meet(ProcessInfo(0, 2, coordinator), 600)


def test_an_address_that_is_forwarded_can_be_met_at(monkeypatch):
    monkeypatch.setenv(connection.BIND, "0.0.0.0:1")
    listening = connection.listen(ProcessInfo(0, 2, f"192.0.2.1:{free_port()}"))
    with listening.server:
        assert listening.bind == f"[::]:{listening.info.address[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_only_the_needed_address_is_listened_at(host):
    listening = connection.listen(ProcessInfo(0, 2, f"{host}:{free_port()}"))
    with listening.server as server:
        assert server.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_processes_meet_at_an_address_of_ipv6():
    port = free_port()
    assert len(set(outcomes([ProcessInfo(process, 2, f"[::1]:{port}") for process in (0, 1)], 20))) == 1


def test_two_processes_of_one_number_are_told():
    outcome = outcomes(infos(3, 0, 1, 1, secret="s"), 10)
    assert all("two processes say that they are process 1 of 3" in text for text in outcome)


def test_processes_that_disagree_about_their_number_are_told():
    outcome = outcomes(infos(2, 0, 1, numbers={1: 3}, secret="s"), 10)
    assert all("process 1 on" in text and "says 3, process 0 on" in text and "says 2" in text for text in outcome)


def test_without_a_token_who_is_wrong_is_told_and_the_right_one_still_gets_in():
    members = infos(2, 0, 1)
    wrong = [ProcessInfo(1, 3, members[0].coordinator), *members[1:]]
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, members[0], 20)
    assert "processes disagree about how many they are" in outcomes(wrong[:1], 10)[0]
    assert rendezvous.meet(members[1], 20).hosts == first.result().hosts


def test_a_process_that_ended_meanwhile_can_come_again():
    members = infos(3, 0, 1, 2)
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, members[0], 20)
    lost = connection.Connection(socket_to(members[1]))
    rendezvous._introduce(lost, members[1])
    lost.close()
    assert outcomes(members[1:], 20) == [first.result().hosts] * 2


def test_jobs_that_share_an_address_do_not_mix():
    one, other = infos(2, 0, 1, job="a")
    stranger = ProcessInfo(1, 2, one.coordinator, job="b")
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, one, 20)
    assert "another job is there" in outcomes([stranger], 1)[0]
    assert rendezvous.meet(other, 20).hosts == first.result().hosts


def test_a_process_without_the_token_does_not_get_in():
    members = infos(2, 0, 1, secret="s")
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, members[0], 20)
    assert "has another token (OUTLAY_TOKEN), or none" in outcomes([ProcessInfo(1, 2, members[0].coordinator)], 1)[0]
    assert rendezvous.meet(members[1], 20).hosts == first.result().hosts


def test_two_jobs_with_the_same_first_port_both_meet():
    port, other = free_port(), free_port()
    steps = [
        ProcessInfo(process, 2, f"127.0.0.1:{port}", job=job, other_ports=(other,))
        for job in "ab"
        for process in (1, 0)
    ]
    with ThreadPoolExecutor(4) as pool:
        met = list(pool.map(lambda info: rendezvous.meet(info, 30), steps))
    assert met[0].info.coordinator == met[1].info.coordinator
    assert met[2].info.coordinator == met[3].info.coordinator
    assert met[0].info.coordinator != met[2].info.coordinator


def test_a_port_that_is_taken_is_refused():
    (info,) = infos(2, 0)
    with socket.create_server(info.address), pytest.raises(JoinError, match=r"cannot listen at .*already in use"):
        rendezvous.meet(info, 1)


def socket_to(info):
    for _ in range(500):
        try:
            return socket.create_connection(info.address, timeout=280)
        except OSError:
            time.sleep(0.02)
    raise AssertionError("nobody listens")


HELLO = {"process": 1, "num_processes": 2, "host": "x", "nonce": "n", "job": "?"}
STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "garbage": bytes(range(256)) * 16,
    "zeros": b"\0" * 1000 + b"\n",
    "as before": json.dumps({"process": 1, "num_processes": 2, "host": "x"}).encode(),
    "other number": json.dumps(HELLO | {"num_processes": 99}).encode(),
    "infinity": b'{"process": Infinity, "num_processes": 2, "host": "x"}',
    "deep": b"[" * 200_000,
    "less deep": b"[" * 4000,
    "many digits": json.dumps(HELLO).replace("1,", "1" * 4000 + ",", 1).encode(),
    "control characters": json.dumps(HELLO | {"host": "\x1b[2J" * 900}).encode(),
    "a list": b"[1]",
    "no proof": None,
    "half": b'{"process": 1',
    "silence": b"",
}


def test_whatever_strangers_send_the_real_process_gets_in(capsys):
    members = infos(2, 0, 1)
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, members[0], 60)
    held = []
    for sent in STRANGERS.values():
        connection = socket_to(members[0])
        held.append(connection)
        text = json.dumps(HELLO | {"job": rendezvous._digest(members[0])}).encode() if sent is None else sent
        ended = b"" if text in (b"", b'{"process": 1') else b"\n"
        try:
            connection.sendall(text + ended + (b'{"proof": "x"}\n' if sent is None else b""))
        except OSError:  # it has been hung up on
            continue
    assert rendezvous.meet(members[1], 60).hosts == first.result().hosts
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("ignored a connection from 127.0.0.1")]) == 3
    assert "\x1b" not in "".join(lines)
    for one in held:
        one.close()


def test_silent_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(rendezvous, "_MOST_UNKNOWN", 3)
    members = infos(2, 0, 1)
    first = ThreadPoolExecutor(1).submit(rendezvous.meet, members[0], 60)
    held = [socket_to(members[0]) for _ in range(12)]
    assert rendezvous.meet(members[1], 60).hosts == first.result().hosts
    for one in held:
        one.close()


def test_a_machine_whose_own_name_is_loopback_is_named_with_the_fix(monkeypatch):
    monkeypatch.setattr(rendezvous, "own_loopback", lambda: "127.0.1.1")
    names = {threading.get_ident(): "hosta"}
    monkeypatch.setattr(socket, "gethostname", lambda: names.setdefault(threading.get_ident(), f"host{len(names)}"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    outcome = outcomes(infos(2, 0, 1), 10)
    assert all(" for itself: 127.0.1.1" in text for text in outcome)
    assert all("fix: in /etc/hosts of each" in text for text in outcome)
