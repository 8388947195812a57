"""What of a `.scfg` has another shape than Spark writes: asked once, so that whoever reads the file can rely on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlay.brain.files.scfg.plain import EDITOR, TYPE
from outlay.core.error_types import Problem

Path = tuple[str, ...]
_CLASS, _SPECS = "__class_ref__", "modules_specs"
_LARGEST = 2**31 - 1


def malformed(config: Mapping[str, Any], *, name: str) -> list[Problem]:
    """One problem for each thing that is no table, list, text or number where Spark writes one.

    What a setting's value may be is for the setting to say; here is what holds the settings together.

    Args:
        config: of a Brain or a neuron, unwrapped.
        name: of the file, for messages.
    """
    return [
        Problem("damaged", f"{name} {'.'.join(path)}".rstrip(), what, "a whole copy of the file")
        for path, what in _of_brain(config)
    ]


Wrong = Iterator[tuple[Path, str]]


def _of_brain(config: Mapping[str, Any]) -> Wrong:
    yield from _of_config(config, ())
    modules = config.get("modules_map") or {}
    if not isinstance(modules, Mapping):
        yield ("modules_map",), _is_no(modules, "table")
    for name, spec in _items(modules):
        yield from _of_spec(spec, ("modules_map", name))
    for key in ("input_map", "output_map"):
        said = config.get(key) or {}
        if not isinstance(said, Mapping):
            yield (key,), _is_no(said, "table")
        for name, port in _items(said):
            yield from _of_port(port, (key, name), is_input=key == "input_map")
    drawn = config.get(EDITOR) or {}
    for name, port in drawn.items() if isinstance(drawn, Mapping) else ():
        yield from _of_shape(port, (EDITOR, name)) if isinstance(port, Mapping) else ()


def _of_spec(spec: Any, path: Path) -> Wrong:
    """A module or a component."""
    if not isinstance(spec, Mapping):
        yield path, _is_no(spec, "table")
        return
    for key in ("module_cls", "config"):
        if key not in spec:
            yield path, f"{spec.get('name', path[-1])} has no {key}"
    cls = spec.get("module_cls", "")
    said = cls.get("__module_type__") if isinstance(cls, Mapping) else cls
    if not isinstance(said, str):
        yield (*path, "module_cls"), _is_no(said, "text")
    if not isinstance(spec.get("config", {}), Mapping):
        yield (*path, "config"), _is_no(spec["config"], "table")
    else:
        yield from _of_config(spec.get("config", {}), (*path, "config"))
    for key in ("inputs", "effects"):
        ports = spec.get(key) or {}
        if not isinstance(ports, Mapping):
            yield (*path, key), _is_no(ports, "table")
        for port, origins in _items(ports):
            if not isinstance(origins, list):
                yield (*path, key, port), _is_no(origins, "list")
            for at, origin in _items(origins):
                yield from _of_origin(origin, (*path, key, port, at))
    outputs = spec.get("outputs") or {}
    if not isinstance(outputs, Mapping):
        yield (*path, "outputs"), _is_no(outputs, "table")
    for port, written in outputs.items() if isinstance(outputs, Mapping) else ():
        if not isinstance(written, str):
            yield (*path, "outputs", port), _is_no(written, "text")


def _of_config(config: Mapping[str, Any], path: Path) -> Wrong:
    """The settings of a Brain, a module, a component or an initializer."""
    for key in (TYPE, _CLASS):
        if not isinstance(config.get(key) or "", str):
            yield (*path, key), _is_no(config[key], "text")
    units = config.get("units")
    if units is not None and not all(_is_size(size) for size in (units if isinstance(units, list) else [units])):
        yield (*path, "units"), f"{units!r} is no number of neurons"
    for at, spec in _items(config.get(_SPECS) or []):
        if isinstance(spec, Mapping) and not isinstance(spec.get("name"), str):
            yield (*path, _SPECS, at, "name"), _is_no(spec.get("name"), "text")
        yield from _of_spec(spec, (*path, _SPECS, at))
    if not isinstance(config.get(_SPECS) or [], list):
        yield (*path, _SPECS), _is_no(config[_SPECS], "list")
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in (EDITOR, "modules_map", _SPECS, "input_map", "output_map"):
            yield from _of_config(value, (*path, key))


def _of_origin(origin: Any, path: Path) -> Wrong:
    if not isinstance(origin, Mapping):
        yield path, _is_no(origin, "table")
        return
    for key in ("origin", "port"):
        if not isinstance(origin.get(key), str):
            yield (*path, key), _is_no(origin.get(key), "text")


def _of_port(port: Any, path: Path, *, is_input: bool) -> Wrong:
    """What the file says of an input or an output of the Brain."""
    if not isinstance(port, Mapping):
        yield path, _is_no(port, "table")
    elif is_input:
        yield from _of_shape(port, path)
    elif "input" in port:
        yield from _of_origin(port["input"], (*path, "input"))


def _of_shape(port: Mapping[str, Any], path: Path) -> Wrong:
    inner = port.get("spec") or {}
    if not isinstance(inner, Mapping):
        yield (*path, "spec"), _is_no(inner, "table")
        return
    shape = port.get("shape") or inner.get("shape")
    if shape is not None and not (isinstance(shape, list) and all(_is_size(size) for size in shape)):
        yield (*path, "shape"), f"{shape!r} is no shape"


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """What a table or a list holds, with its key or its place."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from ((str(at), item) for at, item in enumerate(value))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= _LARGEST


def _is_no(value: Any, what: str) -> str:
    return "it is missing" if value is None else f"{str(value)[:40]!r} is no {what}"
