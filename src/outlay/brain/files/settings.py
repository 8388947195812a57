"""Tables of settings to modules and components, what is wrong in them, and a stand-in for a module with mistakes."""

from __future__ import annotations

import dataclasses
import reprlib
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from outlay.brain.files.units import UnitError, number_in
from outlay.brain.module import Module, Port
from outlay.brain.registry import kind_of, registered, registered_names
from outlay.core.suggest import did_you_mean
from outlay.recipes.arguments import alternatives

TYPE = "type"
KEYS = {"units": "count"}
"""Settings that a file calls by another name: beside units of measurement, `units` would say nothing."""

LARGEST = 2**31 - 1
"""The largest whole number of a setting: sizes beyond it are none that JAX counts with."""

Report = Callable[[tuple[str, ...], str, str, str], None]
"""Takes what is wrong: path, kind, what, fix."""


def read_table(table: Mapping[str, Any], kind: str, path: tuple[str, ...], report: Report) -> Any:
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


def _read_fields(cls: type, table: Mapping[str, Any], path: tuple[str, ...], report: Report) -> Any:
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
        read = _read_value(value, hints[field.name], field.metadata.get("unit", ""), (*path, key), report)
        wrong |= read is _WRONG
        values[field.name] = read
    for key, field in fields.items():
        if field.name not in values and _is_required(field) and key not in table:
            report((*path, key), "missing setting", f"{table[TYPE]} needs {key}", f"{key} = ...")
            wrong = True
    return None if wrong else cls(**values)


_WRONG = object()


def _read_value(value: Any, hint: Any, unit: str, path: tuple[str, ...], report: Report) -> Any:
    kind = next((kind for option in alternatives(hint) if (kind := kind_of(option))), None)
    if kind:
        if not isinstance(value, Mapping):
            fix = f'{path[-1]} = {{type = "{registered_names(kind)[0]}"}}'
            report(path, "wrong type", f"{path[-1]} = {value!r} is not {_with_article(kind)}", fix)
            return _WRONG
        read = read_table(value, kind, path, report)
        return _WRONG if read is None else read
    try:
        return _converted(value, hint, unit)
    except UnitError as error:
        what, _, fix = str(error).partition("\n")
        report(path, "wrong unit" if isinstance(value, str) else "wrong type", f"{path[-1]}: {what}", fix)
        return _WRONG


def _converted(value: Any, hint: Any, unit: str) -> Any:
    """Convert a value of a file to a type that the setting accepts."""
    options = alternatives(hint)
    for option in options:
        if (converted := _as(option, value, unit)) is not _WRONG:
            return converted
    takes = " or ".join(dict.fromkeys(_takes(option, unit) for option in options if option is not type(None)))
    least = f" of at most {LARGEST}" if type(value) is int and abs(value) > LARGEST else ""
    raise UnitError(f"{reprlib.repr(value)} is not allowed\n{takes}{least}")


def _as(option: Any, value: Any, unit: str) -> Any:
    """Convert a value to one type that the setting accepts; `_WRONG` if that cannot be done."""
    origin = typing.get_origin(option)
    if origin is tuple:
        return _as_tuple(typing.get_args(option), value, unit)
    if origin is typing.Literal:
        return value if value in typing.get_args(option) else _WRONG
    if option is float:
        if isinstance(value, str):
            return number_in(value, unit)
        # Whole numbers of hundreds of digits are none that a float can be.
        is_number = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
        return float(value) if is_number else _WRONG
    if option is Any:
        return value
    # Not isinstance: True is an int to Python, and no number of neurons.
    return value if type(value) is option and not (option is int and abs(value) > LARGEST) else _WRONG


def _as_tuple(args: tuple[Any, ...], value: Any, unit: str) -> Any:
    if not isinstance(value, list):
        return _WRONG
    each = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(each) != len(value):
        return _WRONG
    items = [_as(option, item, unit) for option, item in zip(each, value, strict=True)]
    return _WRONG if any(item is _WRONG for item in items) else tuple(items)


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

    def outputs(self, shapes: Any) -> NoReturn:
        """Never called: a module with problems is not asked."""
        raise NotImplementedError

    def init(self, key: Any, shapes: Any, *, dt: float, dtype: Any) -> NoReturn:
        """Raise: no Brain can be built with it."""
        raise NotImplementedError

    def step(self, state: Any, inputs: Any, *, dt: float) -> NoReturn:
        """Raise: no Brain can be built with it."""
        raise NotImplementedError

    def problems(self, *, dt: float) -> list[str]:
        """Report that it could not be read."""
        return ["its settings have mistakes"]
