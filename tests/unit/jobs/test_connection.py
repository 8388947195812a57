"""Messages between processes that come whole, also the last one of a process that ends."""

import socket
import struct

import pytest

from outlay.jobs.connection import Connection, Disconnected


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
