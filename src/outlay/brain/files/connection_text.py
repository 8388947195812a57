"""Connections as one line of text: `"A_ex:out_spikes -> B_ex:in_spikes after 2 ms"`."""

from __future__ import annotations

import re

from outlay.brain.files.units import UnitError, number_in
from outlay.brain.port import Connection

FORM = '"MODULE:PORT -> MODULE:PORT", or with a delay "MODULE:PORT -> MODULE:PORT after 2 ms"'
_CONNECTION = re.compile(r"\s*(\S+)\s*->\s*(\S+?)\s*(?:\s+after\s+(.+?)\s*)?")


def parse_connection(text: str) -> Connection:
    """The connection that a line says.

    Raises:
        UnitError: it says none.

    >>> parse_connection("A_ex:out_spikes -> B_ex:in_spikes after 2 ms")
    Connection(origin='A_ex:out_spikes', target='B_ex:in_spikes', delay=2.0)
    """
    found = _CONNECTION.fullmatch(text)
    if not found:
        raise UnitError(f"{text!r} is no connection\n{FORM}")
    return Connection(found[1], found[2], None if found[3] is None else number_in(found[3], "ms"))


def connection_text(connection: Connection) -> str:
    """A connection as a line: the inverse of `parse_connection`."""
    return str(connection) + ("" if connection.delay is None else f" after {connection.delay!r} ms")
