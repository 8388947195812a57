"""Messages between processes that come whole, also the last one of a process that ends."""

import socket
import struct

import pytest

from outlay.core.error_types import JoinError
from outlay.jobs import connection
from outlay.jobs.connection import BIND, Connection, Disconnected, listen
from outlay.jobs.process_info import ProcessInfo
from outlay.jobs.rendezvous import meet
from outlay.launcher.job import free_port


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    line = Connection(other)
    yield one, line
    one.close()
    line.close()


def test_the_last_words_of_one_that_ends_without_listening_are_read(ends):
    one, line = ends
    one.sendall(b'{"here": true}\n{"failed": 13}\n')
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets
    one.close()
    assert line.read() == [{"here": True}, {"failed": 13}]
    with pytest.raises(Disconnected):
        line.read()


def test_one_that_hangs_up_has_gone(ends):
    one, line = ends
    one.sendall(b'{"here": true}\n')
    one.close()
    assert line.read() == [{"here": True}]
    with pytest.raises(Disconnected, match="hung up"):
        line.read()


@pytest.fixture
def debian(monkeypatch):
    """A machine whose /etc/hosts has its own name as a loopback, as Debian and many containers do."""
    monkeypatch.setattr(connection, "_addresses", lambda host: ["127.0.1.1"])
    monkeypatch.delenv(BIND, raising=False)
    return ProcessInfo(0, 2, f"me:{free_port()}")


def test_where_the_name_is_a_loopback_only_that_is_listened_at(debian, monkeypatch):
    heard = listen(debian)
    with heard.server:
        assert heard.server.getsockname()[0] == "127.0.1.1"
        assert heard.bind == f"127.0.1.1:{debian.address[1]}"
        assert "process 0 listens at 127.0.1.1 alone, since that is me on its machine" in heard.only_here
    monkeypatch.setenv(BIND, f"0.0.0.0:{debian.address[1]}")
    heard = listen(debian)
    with heard.server:
        assert heard.server.getsockname()[0] in ("::", "0.0.0.0")
        assert heard.only_here == ""


def test_who_is_missing_there_may_be_on_another_machine(debian):
    with pytest.raises(JoinError, match=r"missing: process 1\n  process 0 listens at 127.0.1.1 alone.*\n  fix: in "):
        meet(debian, 0.2)


def test_an_address_in_numbers_is_a_loopback_on_purpose():
    heard = listen(ProcessInfo(0, 2, f"127.0.0.1:{free_port()}"))
    with heard.server:
        assert heard.only_here == ""
