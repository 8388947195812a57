"""Read settings as people write them: tables of modules and components, numbers with units, and connections as text."""

from __future__ import annotations

import dataclasses
import re
import reprlib
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from outlay.brain.connections import Connection
from outlay.brain.module import Module, Port, split_message
from outlay.brain.registry import kind_of, registered, registered_names
from outlay.brain.somas.soma import Soma
from outlay.brain.synapses import Synapses
from outlay.kit import KeyPath, alternatives, did_you_mean

TYPE = "type"
KEYS = {"units": "count"}
"""Settings that a file calls by another name: beside units of measurement, `units` would say nothing."""

LARGEST = 2**31 - 1
"""The largest whole number of a setting: sizes beyond it are none that JAX counts with."""

Report = Callable[[KeyPath, str, str, str], None]
"""Takes what is wrong: path, kind, what, fix."""


def read_table(table: Mapping[str, Any], kind: str, path: KeyPath, report: Report) -> Any:
    """Return the module or component that a table describes; None if something in it is wrong.

    Args:
        table: its settings, and under `type` its name.
        kind: what it is to be: `module`, `soma`, `initializer` and so on.
        path: the path of the table, within the module.
        report: takes each thing that is wrong.
    """
    names = registered_names(kind)
    if TYPE not in table:
        report(path, "no type", f"it does not say which {_words(kind)} it is", f"type = one of {', '.join(names)}")
        return None
    if table[TYPE] not in names:
        fix = did_you_mean(str(table[TYPE]), names)
        report((*path, TYPE), "unknown type", f"there is no {_words(kind)} {table[TYPE]!r}", fix)
        return None
    return _read_fields(registered(table[TYPE], kind=kind), table, path, report)


def file_key(name: str) -> str:
    """Return the key of a setting in files."""
    return KEYS.get(name, name)


def _read_fields(cls: type, table: Mapping[str, Any], path: KeyPath, report: Report) -> Any:
    hints, fields = typing.get_type_hints(cls), {file_key(f.name): f for f in dataclasses.fields(cls) if f.init}
    values, wrong = {}, False
    for key, value in table.items():
        if key == TYPE:
            continue
        if key not in fields:
            fix = did_you_mean(key, fields) if fields else "remove it: it has no settings"
            report((*path, key), "unknown setting", f"{table[TYPE]} has no setting {key!r}", fix)
            wrong = True
            continue
        field = fields[key]
        read = _read_value(value, hints[field.name], field, (*path, key), report, each=issubclass(cls, Soma | Synapses))
        wrong |= read is INVALID
        values[field.name] = read
    for key, field in fields.items():
        if field.name not in values and _is_required(field) and key not in table:
            report((*path, key), "missing setting", f"{table[TYPE]} needs {key}", f"{key} = ...")
            wrong = True
    return None if wrong else cls(**values)


INVALID = object()


def _read_value(value: Any, hint: Any, field: dataclasses.Field, path: KeyPath, report: Report, *, each: bool) -> Any:
    """Return the value of a setting; with `each` it may be a list, of one number for each neuron."""
    kind = next((kind for option in alternatives(hint) if (kind := kind_of(option))), None)
    if kind:
        if not isinstance(value, Mapping):
            fix = f'{path[-1]} = {{type = "{registered_names(kind)[0]}"}}'
            report(path, "wrong type", f"{path[-1]} = {value!r} is not {_with_article(kind)}", fix)
            return INVALID
        read = read_table(value, kind, path, report)
        return INVALID if read is None else read
    unit = field.metadata.get("unit", "")
    try:
        if each and isinstance(value, list) and float in alternatives(hint):
            return tuple(_converted(one, float, unit) for one in value)
        return _converted(value, hint, unit)
    except UnitError as error:
        what, fix = split_message(error)
        if isinstance(value, str) and "fix" in field.metadata:
            fix = field.metadata["fix"]
        report(path, "wrong unit" if isinstance(value, str) else "wrong type", f"{path[-1]}: {what}", fix)
        return INVALID


def _converted(value: Any, hint: Any, unit: str) -> Any:
    """Convert a value of a file to a type that the setting accepts."""
    options = alternatives(hint)
    for option in options:
        if (converted := _as(option, value, unit)) is not INVALID:
            return converted
    takes = " or ".join(dict.fromkeys(_takes(option, unit) for option in options if option is not type(None)))
    least = f" of at most {LARGEST}" if type(value) is int and abs(value) > LARGEST else ""
    raise UnitError(f"{reprlib.repr(value)} is not allowed\n{takes}{least}")


def _as(option: Any, value: Any, unit: str) -> Any:
    """Convert a value to one type that the setting accepts; `INVALID` if that cannot be done."""
    origin = typing.get_origin(option)
    if origin is tuple:
        return _as_tuple(typing.get_args(option), value, unit)
    if origin is typing.Literal:
        return value if value in typing.get_args(option) else INVALID
    if option is float:
        if isinstance(value, str):
            return number_in(value, unit)
        # Whole numbers of hundreds of digits are none that a float can be.
        is_number = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
        return float(value) if is_number else INVALID
    if option is Any:
        return value
    # Not isinstance: True is an int to Python, and no number of neurons.
    return value if type(value) is option and not (option is int and abs(value) > LARGEST) else INVALID


def _as_tuple(args: tuple[Any, ...], value: Any, unit: str) -> Any:
    if not isinstance(value, list):
        return INVALID
    each = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(each) != len(value):
        return INVALID
    items = [_as(option, item, unit) for option, item in zip(each, value, strict=True)]
    return INVALID if any(item is INVALID for item in items) else tuple(items)


def _takes(option: Any, unit: str) -> str:
    origin, args = typing.get_origin(option), typing.get_args(option)
    if origin is tuple:
        return f"a list of {_takes(args[0], unit).removeprefix('a ')}s" if args[1:] == (Ellipsis,) else "a list"
    if origin is typing.Literal:
        return " or ".join(map(repr, args))
    names = {float: f"a number in {unit}" if unit else "a number", int: "a whole number", bool: "true or false"}
    return names.get(option, "a text" if option is str else str(option))


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {_words(kind)}"


@dataclass(frozen=True)
class Unread(Module):
    """A module whose settings have mistakes, which are told elsewhere.

    Attributes:
        ports: those that the file connects something to.
    """

    ports: tuple[str, ...]

    def inputs(self) -> Mapping[str, Port]:
        """Return the ports that the file connects something to."""
        return {port: Port("values") for port in self.ports}

    def _never(self, *args: Any, **options: Any) -> NoReturn:
        """Raise: a module with problems is not asked, and no Brain can be built with it."""
        raise NotImplementedError

    outputs = init = step = _never

    def problems(self, *, dt: float) -> list[str]:
        """Report that it could not be read."""
        return ["its settings have mistakes"]


# Two characters look like µ: the micro sign and the Greek letter.
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
