"""Numbers with units and connections as people write them: `"20 ms"`, `"A:out_spikes -> B:in_spikes after 2 ms"`."""

from __future__ import annotations

import re

from outlay.brain.connections import Connection

_PREFIXES = {"f": -15, "p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9}
_BASES = {"s": "s", "V": "V", "A": "A", "Ohm": "Ohm", "ohm": "Ohm", "Ω": "Ohm", "F": "F", "S": "S", "Hz": "Hz"}
_QUANTITIES = {
    "s": "a time",
    "V": "a voltage",
    "A": "a current",
    "Ohm": "a resistance",
    "F": "a capacitance",
    "S": "a conductance",
    "Hz": "a frequency",
}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")

FORM = '"MODULE:PORT -> MODULE:PORT", or with a delay "MODULE:PORT -> MODULE:PORT after 2 ms"'
_CONNECTION = re.compile(r"\s*(\S+)\s*->\s*(\S+?)\s*(?:\s+after\s+(.+?)\s*)?")


class UnitError(ValueError):
    """A text that is not a number of the unit asked for: what is wrong, and after a newline the fix."""


def number_in(text: str, unit: str) -> float:
    """Convert a number with its unit to another unit.

    Args:
        text: such as `"20 ms"`.
        unit: the unit to convert to, such as `ms`; empty for a number without one.

    Raises:
        UnitError: it is not a number, or of another quantity.

    >>> number_in("0.02 s", "ms"), number_in("100 MOhm", "GOhm"), number_in("-60mV", "mV")
    (20.0, 0.1, -60.0)
    """
    match = _NUMBER.fullmatch(text)
    if not match:
        raise UnitError(f"{text!r} is not a number\n{_example(unit)}")
    number, written = float(match[1].replace("_", "")), match[2]
    if written in ("", unit):
        return number
    written_parts, asked = _parts(written), _parts(unit)
    if written_parts is None or asked is None or written_parts[1] != asked[1]:
        raise UnitError(f"{text!r} is {_of(written, written_parts)}, and this is {_of(unit, asked)}\n{_example(unit)}")
    exponent = written_parts[0] - asked[0]
    # Dividing by a power of ten rounds once where multiplying by its inverse would round twice.
    return number * 10.0**exponent if exponent >= 0 else number / 10.0**-exponent


def _parts(unit: str) -> tuple[int, str] | None:
    """Return the power of ten and the base of a unit; None if it is not a prefix and a base."""
    for base, name in _BASES.items():
        if unit.endswith(base) and unit.removesuffix(base) in _PREFIXES:
            return _PREFIXES[unit.removesuffix(base)], name
    return None


def _of(unit: str, parts: tuple[int, str] | None) -> str:
    if not unit:
        return "a number without a unit"
    return f"{_QUANTITIES[parts[1]]} in {unit}" if parts else f"in {unit!r}"


def _example(unit: str) -> str:
    return f'a number in {unit}, such as 20.0 or "20 {unit}"' if unit else "a number, such as 20.0"


def parse_connection(text: str) -> Connection:
    """Return the connection that a line of text describes.

    Raises:
        UnitError: it describes none.

    >>> parse_connection("A_ex:out_spikes -> B_ex:in_spikes after 2 ms")
    Connection(origin='A_ex:out_spikes', target='B_ex:in_spikes', delay=2.0)
    """
    match = _CONNECTION.fullmatch(text)
    if not match:
        raise UnitError(f"{text!r} is not a connection\n{FORM}")
    return Connection(match[1], match[2], None if match[3] is None else number_in(match[3], "ms"))


def connection_text(connection: Connection) -> str:
    """Return a connection as a line of text: the inverse of `parse_connection`."""
    return str(connection) + ("" if connection.delay is None else f" after {connection.delay!r} ms")
