"""What a `.scfg` file holds, as plain dictionaries: decompressed, unwrapped, without what only its editor needs."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlay.brain.brain_error import BrainError
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


def is_scfg(content: bytes) -> bool:
    """Whether a file's content looks like that of a `.scfg`: xz or JSON."""
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
    """The configuration in a `.scfg` file.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        BrainError: the file is damaged, or holds no configuration of a Brain or a neuron.
    """
    try:
        parsed = _parsed(_text(content, name), name)
        unwrapped = _unwrapped(parsed)
        newer = _is_newer(parsed)
    except RecursionError as error:
        what = "its objects or lists stand in one another, hundreds deep"
        raise _refusal(name, "nested too deeply", what, "a file as Spark writes it") from error
    kind = str(unwrapped.get(TYPE)) if isinstance(unwrapped, dict) else ""
    if isinstance(unwrapped, dict) and kind.endswith("neuron_config"):
        return Plain(unwrapped, True, newer)
    if not isinstance(unwrapped, dict) or not unwrapped.keys() & {"modules_map", "modules_specs"}:
        what = unwrapped.get(TYPE) if isinstance(unwrapped, dict) else None
        said = f"it holds {what!r}" if what else "it holds neither modules_map nor modules_specs"
        raise _refusal(name, "not a Brain", said, "the file of a Brain, as Spark's BrainConfig.to_file writes it")
    return Plain(unwrapped, "units" in unwrapped, newer)


NEWER = frozenset({"adaptation_subthreshold", "clamp_duration"})
"""Settings that every soma with mechanisms has since Spark 1.1.1."""
_OLDER_CLASSES = re.compile(r"three_factor|rule_tensor|refractory|simplified|adaptive_(leaky|exponential)_soma")
_OLDER_REGISTRIES = ("MODULES", "NEURONS", "INTERFACES", "COMPONENTS")


def _is_newer(parsed: Any) -> bool:
    """Whether Spark 1.1.1 or a later version wrote a file, which does not say it.

    What only newer versions write decides first, then what only older ones did. A file with neither has nothing in it
    that they take differently but delays, and is taken for a newer one.
    """
    newer, older = False, False
    for key, value in _items(parsed):
        newer |= key in NEWER or (key == "seed" and value is None)
        older |= (key == TYPE and value in ARRAYS[1:]) or (key == "__subregistry__" and value in _OLDER_REGISTRIES)
        older |= key == "__module_type__" and bool(_OLDER_CLASSES.match(str(value)))
        older |= (key, value) == ("origin", "__self__")
    return newer or not older


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of all tables within a value, but for what is the editor's."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if key != EDITOR:
            yield key, item
            yield from _items(item)
    for item in value if isinstance(value, list) else ():
        yield from _items(item)


def _text(content: bytes, name: str) -> str:
    try:
        return (_decompressed(content, name) if content.startswith(XZ) else content).decode()
    except lzma.LZMAError as error:
        what = f"its xz data ends early or is damaged: {error}"
        raise _refusal(name, "damaged", what, "a whole copy of the file") from error
    except UnicodeDecodeError as error:
        raise _refusal(name, "damaged", "it holds neither xz data nor text", "a whole copy of the file") from error


def _decompressed(content: bytes, name: str) -> bytes:
    """What xz data unpacks to: a small file of a stranger must not fill the memory."""
    found, left = [], content
    room = LARGEST
    while left:
        one = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        while not one.eof:
            piece = one.decompress(left, room + 1)
            left = b""
            room -= len(piece)
            if room < 0:
                what = f"its {len(content):,} bytes unpack to more than {LARGEST:,}"
                raise _refusal(name, "too large", what, "unpack it yourself (xz -d) if you trust it; JSON is read too")
            found.append(piece)
            if not piece and one.needs_input:
                raise lzma.LZMAError("the data ends before the end of the stream")
        left = one.unused_data.lstrip(b"\0")  # between streams stand zeros
    return b"".join(found)


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
    """The values of an array; one value is a number, whatever its shape."""
    while isinstance(data, list) and len(data) == 1:
        data = data[0]
    return data
