"""What a `.scfg` file holds, as plain dictionaries: decompressed, unwrapped, and of the shape that Spark writes.

The shape is checked once, here, so that whoever reads the dictionaries can rely on it.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.brain.module import BrainError
from outlay.errors import Problem
from outlay.kit import KeyPath

XZ = b"\xfd7zXZ\x00"
TYPE = "__type__"
ARRAYS = ("array", "jax_array", "numpy_array")
_CONTENTS = ("__cfg__", "__data__")
_EDITORS = ("__config_delimiter__", "__shared_config_delimiter__", "__schema_version__")
LARGEST = 2**28
"""Bytes that a compressed file may unpack to, 256 MiB: kernels are drawn or lie in files of their own."""
_MEMORY = 2**28  # that the decompressor itself may take
EDITOR = "__graph_editor_metadata__"
"""Where the graph editor keeps positions, and with them the shapes of inputs that newer files say nowhere else."""

_CLASS, _SPECS = "__class_ref__", "modules_specs"
_LARGEST = 2**31 - 1


def is_scfg(content: bytes) -> bool:
    """Return whether the content of a file looks like a `.scfg`: xz or JSON."""
    return content.startswith(XZ) or content.lstrip()[:1] in (b"{", b'"')


@dataclass(frozen=True)
class Plain:
    """What a file holds.

    Attributes:
        config: the configuration of a Brain or of a neuron.
        is_neuron: whether it is that of a neuron.
        is_newer: whether Spark 1.1.1 or a later version wrote it.
    """

    config: dict[str, Any]
    is_neuron: bool
    is_newer: bool


def plain(content: bytes, *, name: str) -> Plain:
    """Return the configuration in a `.scfg` file.

    Args:
        content: the content of the file.
        name: the name of the file, for messages.

    Raises:
        BrainError: the file is damaged, or holds no configuration of a Brain or a neuron.
    """
    try:
        parsed = _parsed(_text(content, name), name)
        unwrapped = _unwrapped(parsed)
        newer = _is_newer(parsed)
    except RecursionError as error:
        what = "its objects or lists are nested hundreds of levels deep"
        raise _refusal(name, "nested too deeply", what, "a file as Spark writes it") from error
    kind = str(unwrapped.get(TYPE)) if isinstance(unwrapped, dict) else ""
    if isinstance(unwrapped, dict) and kind.endswith("neuron_config"):
        return Plain(unwrapped, True, newer)
    if not isinstance(unwrapped, dict) or not unwrapped.keys() & {"modules_map", "modules_specs"}:
        what = unwrapped.get(TYPE) if isinstance(unwrapped, dict) else None
        message = f"it holds {what!r}" if what else "it holds neither modules_map nor modules_specs"
        raise _refusal(name, "not a Brain", message, "the file of a Brain, as Spark's BrainConfig.to_file writes it")
    return Plain(unwrapped, "units" in unwrapped, newer)


NEWER = frozenset({"adaptation_subthreshold", "clamp_duration"})
"""Settings that every soma with mechanisms has since Spark 1.1.1."""
_OLDER_CLASSES = re.compile(r"three_factor|rule_tensor|refractory|simplified|adaptive_(leaky|exponential)_soma")
_OLDER_REGISTRIES = ("MODULES", "NEURONS", "INTERFACES", "COMPONENTS")


def _is_newer(parsed: Any) -> bool:
    """Return whether Spark 1.1.1 or a later version wrote a file, which does not say it.

    What only newer versions write decides first, then what only older ones did. A file with neither has nothing in it
    that they take differently but delays, and is taken for a newer one.
    """
    newer, older = False, False
    for key, value in _entries(parsed):
        newer |= key in NEWER or (key == "seed" and value is None)
        older |= (key == TYPE and value in ARRAYS[1:]) or (key == "__subregistry__" and value in _OLDER_REGISTRIES)
        older |= key == "__module_type__" and bool(_OLDER_CLASSES.match(str(value)))
        older |= (key, value) == ("origin", "__self__")
    return newer or not older


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of all tables within a value, except the graph editor's."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if key != EDITOR:
            yield key, item
            yield from _entries(item)
    for item in value if isinstance(value, list) else ():
        yield from _entries(item)


def _text(content: bytes, name: str) -> str:
    try:
        return (_decompressed(content, name) if content.startswith(XZ) else content).decode()
    except lzma.LZMAError as error:
        what = f"its xz data ends early or is damaged: {error}"
        raise _refusal(name, "damaged", what, "a whole copy of the file") from error
    except UnicodeDecodeError as error:
        raise _refusal(name, "damaged", "it holds neither xz data nor text", "a whole copy of the file") from error


def _decompressed(content: bytes, name: str) -> bytes:
    """Unpack xz data, with a limit: a small file of a stranger must not fill the memory."""
    pieces, rest = [], content
    room = LARGEST
    while rest:
        one = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        while not one.eof:
            piece = one.decompress(rest, room + 1)
            rest = b""  # what is not unpacked yet the decompressor keeps
            room -= len(piece)
            if room < 0:
                what = f"its {len(content):,} bytes unpack to more than {LARGEST:,}"
                raise _refusal(name, "too large", what, "unpack it yourself (xz -d) if you trust it; JSON is read too")
            pieces.append(piece)
            if not piece and one.needs_input:
                raise lzma.LZMAError("the data ends before the end of the stream")
        rest = one.unused_data.lstrip(b"\0")  # between streams stand zeros
    return b"".join(pieces)


def _parsed(text: str, name: str) -> Any:
    try:
        value = json.loads(text)
        return json.loads(value) if isinstance(value, str) else value  # some are JSON written as a JSON text
    except json.JSONDecodeError as error:
        where = f"{name}:{error.lineno}:{error.colno}"
        what = f"its JSON breaks off or is wrong: {error.msg}"
        raise _refusal(where, "damaged", what, "a whole copy of the file") from error
    except RecursionError as error:
        raise _refusal(name, "damaged", "it is nested too deeply to be read", "a whole copy of the file") from error
    except ValueError as error:  # a number of thousands of digits
        what = f"its JSON breaks off or is wrong: {error}"
        raise _refusal(name, "damaged", what, "a whole copy of the file") from error


def _refusal(where: str, kind: str, what: str, fix: str) -> BrainError:
    return BrainError("the .scfg file cannot be read:", [Problem(kind, where, what, fix)])


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_unwrapped(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__version__" in value and "__data__" in value:
        return _unwrapped(value["__data__"])
    kind = value.get(TYPE)
    if kind in ARRAYS:
        return _number_or_list(value.get("data"))
    if kind in ("dtype", "jax_dtype"):
        return value.get("name")
    if kind == "shape":
        return value.get("data")
    for key in _CONTENTS:
        if isinstance(value.get(key), dict):
            inner = _unwrapped(value[key])
            return {TYPE: kind, **inner} if isinstance(inner, dict) else inner
    return {key: _unwrapped(item) for key, item in value.items() if key not in _EDITORS}


def _number_or_list(data: Any) -> Any:
    """Return the values of an array; an array of one value, of whatever shape, is a number."""
    while isinstance(data, list) and len(data) == 1:
        data = data[0]
    return data


def malformed(config: Mapping[str, Any], *, name: str) -> list[Problem]:
    """Return one problem for each thing that is not a table, list, text or number where Spark writes one.

    What a setting's value may be is for the setting to say; here is what holds the settings together.

    Args:
        config: the config of a Brain or a neuron, unwrapped.
        name: the name of the file, for messages.
    """
    damages = _Damages(name)
    damages.look_at(config)
    return damages.problems


class _Damages:
    """Collects what is of another shape than Spark writes."""

    def __init__(self, name: str) -> None:
        self.problems: list[Problem] = []
        self._name = name

    def look_at(self, config: Mapping[str, Any]) -> None:
        """Look at the configuration of a Brain or a neuron."""
        self._config(config, ())
        for name, spec in self._table(config.get("modules_map") or {}, ("modules_map",)).items():
            self._spec(spec, ("modules_map", name))
        for name, port in self._table(config.get("input_map") or {}, ("input_map",)).items():
            self._shape(self._table(port, ("input_map", name)), ("input_map", name))
        for name, port in self._table(config.get("output_map") or {}, ("output_map",)).items():
            if "input" in self._table(port, ("output_map", name)):
                self._origin(port["input"], ("output_map", name, "input"))
        drawn = config.get(EDITOR) or {}
        for name, port in drawn.items() if isinstance(drawn, Mapping) else ():
            self._shape(port if isinstance(port, Mapping) else {}, (EDITOR, name))

    def _spec(self, spec: Any, path: KeyPath) -> None:
        """Look at a module or a component."""
        for key in ("module_cls", "config") if isinstance(spec, Mapping) else ():
            if key not in spec:
                self._add(path, f"{spec.get('name', path[-1])} has no {key}")
        spec = self._table(spec, path)
        cls = spec.get("module_cls", "")
        self._text(cls.get("__module_type__") if isinstance(cls, Mapping) else cls, (*path, "module_cls"))
        self._config(self._table(spec.get("config", {}), (*path, "config")), (*path, "config"))
        for key in ("inputs", "effects"):
            for port, origins in self._table(spec.get(key) or {}, (*path, key)).items():
                for at, origin in enumerate(self._list(origins, (*path, key, port))):
                    self._origin(origin, (*path, key, port, str(at)))
        for port, written in self._table(spec.get("outputs") or {}, (*path, "outputs")).items():
            self._text(written, (*path, "outputs", port))

    def _config(self, config: Mapping[str, Any], path: KeyPath) -> None:
        """Look at the settings of a Brain, a module, a component or an initializer."""
        for key in (TYPE, _CLASS):
            self._text(config.get(key) or "", (*path, key))
        units = config.get("units")
        if units is not None and not all(_is_size(size) for size in (units if isinstance(units, list) else [units])):
            self._add((*path, "units"), f"{units!r} is not a number of neurons")
        for at, spec in enumerate(self._list(config.get(_SPECS) or [], (*path, _SPECS))):
            if isinstance(spec, Mapping):
                self._text(spec.get("name"), (*path, _SPECS, str(at), "name"))
            self._spec(spec, (*path, _SPECS, str(at)))
        for key, value in config.items():
            if isinstance(value, Mapping) and key not in (EDITOR, "modules_map", _SPECS, "input_map", "output_map"):
                self._config(value, (*path, key))

    def _origin(self, origin: Any, path: KeyPath) -> None:
        origin = self._table(origin, path, {"origin": "", "port": ""})
        for key in ("origin", "port"):
            self._text(origin.get(key), (*path, key))

    def _shape(self, port: Mapping[str, Any], path: KeyPath) -> None:
        inner = self._table(port.get("spec") or {}, (*path, "spec"))
        shape = port.get("shape") or inner.get("shape")
        if shape is not None and not (isinstance(shape, list) and all(_is_size(size) for size in shape)):
            self._add((*path, "shape"), f"{shape!r} is not a shape")

    def _table(self, value: Any, path: KeyPath, otherwise: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return self._checked(value, Mapping, "table", path, otherwise or {})

    def _list(self, value: Any, path: KeyPath) -> list[Any]:
        return self._checked(value, list, "list", path, [])

    def _text(self, value: Any, path: KeyPath) -> None:
        self._checked(value, str, "text", path, "")

    def _checked(self, value: Any, kind: type, what: str, path: KeyPath, otherwise: Any) -> Any:
        """Return a value of this kind; report any other, and return what stands in for it."""
        if isinstance(value, kind):
            return value
        self._add(path, "it is missing" if value is None else f"{str(value)[:40]!r} is not a {what}")
        return otherwise

    def _add(self, path: KeyPath, what: str) -> None:
        where = f"{self._name} {'.'.join(path)}".rstrip()
        self.problems.append(Problem("damaged", where, what, "a whole copy of the file"))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= _LARGEST
