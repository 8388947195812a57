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
from outlay.core.error_types import Problem

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

Path = tuple[str, ...]
_CLASS, _SPECS = "__class_ref__", "modules_specs"
_LARGEST = 2**31 - 1
Damages = Iterator[tuple[Path, str]]
"""The path of each damaged thing, and what is wrong with it."""


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
    """Yield every key and value of all tables within a value, without those of the graph editor."""
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
            rest = b""
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
    return [
        Problem("damaged", f"{name} {'.'.join(path)}".rstrip(), what, "a whole copy of the file")
        for path, what in _of_brain(config)
    ]


def _of_brain(config: Mapping[str, Any]) -> Damages:
    yield from _of_config(config, ())
    modules = config.get("modules_map") or {}
    if not isinstance(modules, Mapping):
        yield ("modules_map",), _is_not(modules, "table")
    for name, spec in _items(modules):
        yield from _of_spec(spec, ("modules_map", name))
    for key in ("input_map", "output_map"):
        ports = config.get(key) or {}
        if not isinstance(ports, Mapping):
            yield (key,), _is_not(ports, "table")
        for name, port in _items(ports):
            yield from _of_port(port, (key, name), is_input=key == "input_map")
    drawn = config.get(EDITOR) or {}
    for name, port in drawn.items() if isinstance(drawn, Mapping) else ():
        yield from _of_shape(port, (EDITOR, name)) if isinstance(port, Mapping) else ()


def _of_spec(spec: Any, path: Path) -> Damages:
    """Read a module or a component."""
    if not isinstance(spec, Mapping):
        yield path, _is_not(spec, "table")
        return
    for key in ("module_cls", "config"):
        if key not in spec:
            yield path, f"{spec.get('name', path[-1])} has no {key}"
    cls = spec.get("module_cls", "")
    spark_class = cls.get("__module_type__") if isinstance(cls, Mapping) else cls
    if not isinstance(spark_class, str):
        yield (*path, "module_cls"), _is_not(spark_class, "text")
    if not isinstance(spec.get("config", {}), Mapping):
        yield (*path, "config"), _is_not(spec["config"], "table")
    else:
        yield from _of_config(spec.get("config", {}), (*path, "config"))
    for key in ("inputs", "effects"):
        ports = spec.get(key) or {}
        if not isinstance(ports, Mapping):
            yield (*path, key), _is_not(ports, "table")
        for port, origins in _items(ports):
            if not isinstance(origins, list):
                yield (*path, key, port), _is_not(origins, "list")
            for at, origin in _items(origins):
                yield from _of_origin(origin, (*path, key, port, at))
    outputs = spec.get("outputs") or {}
    if not isinstance(outputs, Mapping):
        yield (*path, "outputs"), _is_not(outputs, "table")
    for port, written in outputs.items() if isinstance(outputs, Mapping) else ():
        if not isinstance(written, str):
            yield (*path, "outputs", port), _is_not(written, "text")


def _of_config(config: Mapping[str, Any], path: Path) -> Damages:
    """Read the settings of a Brain, a module, a component or an initializer."""
    for key in (TYPE, _CLASS):
        if not isinstance(config.get(key) or "", str):
            yield (*path, key), _is_not(config[key], "text")
    units = config.get("units")
    if units is not None and not all(_is_size(size) for size in (units if isinstance(units, list) else [units])):
        yield (*path, "units"), f"{units!r} is not a number of neurons"
    for at, spec in _items(config.get(_SPECS) or []):
        if isinstance(spec, Mapping) and not isinstance(spec.get("name"), str):
            yield (*path, _SPECS, at, "name"), _is_not(spec.get("name"), "text")
        yield from _of_spec(spec, (*path, _SPECS, at))
    if not isinstance(config.get(_SPECS) or [], list):
        yield (*path, _SPECS), _is_not(config[_SPECS], "list")
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in (EDITOR, "modules_map", _SPECS, "input_map", "output_map"):
            yield from _of_config(value, (*path, key))


def _of_origin(origin: Any, path: Path) -> Damages:
    if not isinstance(origin, Mapping):
        yield path, _is_not(origin, "table")
        return
    for key in ("origin", "port"):
        if not isinstance(origin.get(key), str):
            yield (*path, key), _is_not(origin.get(key), "text")


def _of_port(port: Any, path: Path, *, is_input: bool) -> Damages:
    """Read what the file says about an input or an output of the Brain."""
    if not isinstance(port, Mapping):
        yield path, _is_not(port, "table")
    elif is_input:
        yield from _of_shape(port, path)
    elif "input" in port:
        yield from _of_origin(port["input"], (*path, "input"))


def _of_shape(port: Mapping[str, Any], path: Path) -> Damages:
    inner = port.get("spec") or {}
    if not isinstance(inner, Mapping):
        yield (*path, "spec"), _is_not(inner, "table")
        return
    shape = port.get("shape") or inner.get("shape")
    if shape is not None and not (isinstance(shape, list) and all(_is_size(size) for size in shape)):
        yield (*path, "shape"), f"{shape!r} is not a shape"


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a table or a list holds, with its key or its number."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from ((str(at), item) for at, item in enumerate(value))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= _LARGEST


def _is_not(value: Any, what: str) -> str:
    return "it is missing" if value is None else f"{str(value)[:40]!r} is not a {what}"
