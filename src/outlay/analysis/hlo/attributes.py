"""Parse what follows an instruction's operands: `name=value` attributes, and op name and source lines of metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outlay.analysis.hlo.hlo_module import SourceLine

# Every repetition is possessive (`*+`): nothing that was matched is tried in another way, so odd text takes no longer.
QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+'
_NAME = re.compile(r"[,\s]*+([\w.\-]++)=")
_MARK = re.compile(QUOTED + r"|[\[\](){},]")
_QUOTED = re.compile(QUOTED)
_NUMBER = re.compile(r"\d{1,9}")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


class Attributes(Mapping[str, str]):
    """The attributes of an instruction, parsed when first asked for: most never are."""

    __slots__ = ("_text", "_values")

    def __init__(self, text: str) -> None:
        self._text = text
        self._values: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._values is None:
            self._values = read_attributes(self._text)
        return self._values

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def get(self, name: Any, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        # Most questions are for attributes that are not there, which is seen without parsing.
        if self._values is None and f"{name}=" not in self._text:
            return default
        return self._read().get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


def read_attributes(text: str) -> dict[str, str]:
    """Parse the attributes by name; values stay as they are in the text.

    Examples:
        >>> read_attributes(', channel_id=1, replica_groups={{0,1},{2,3}}, metadata={op_name="f(x, y={1})"}')
        {'channel_id': '1', 'replica_groups': '{{0,1},{2,3}}', 'metadata': '{op_name="f(x, y={1})"}'}
    """
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        name = _NAME.match(text, at)
        start = name.end() if name else at
        end = _value_end(text, start)
        if name:
            values[name[1]] = text[start:end].rstrip()
        at = end + 1
    return values


def _value_end(text: str, start: int) -> int:
    """Return the position of the comma that ends the value: outside of all brackets and quotes."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        sign = mark[0]
        if sign == "," and depth == 0:
            return mark.start()
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
    return len(text)


def closing(text: str, start: int) -> int:
    """Return the position where the parenthesis at `start` is closed; -1 if it is not.

    Examples:
        >>> closing('f(a, (b), ")")', 1)
        13
    """
    depth = 0
    for mark in _MARK.finditer(text, start):
        sign = mark[0]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return mark.start()
    return -1


def unquote(text: str) -> str:
    r"""Return the content of a quoted string.

    Examples:
        >>> unquote(r'"w[\'a\']"'), unquote(r'"caf\303\251"')
        ("w['a']", 'café')
    """
    inner = text[1:-1] if text.endswith('"') else text[1:]
    if "\\" not in inner:
        return inner
    # XLA escapes bytes outside of ASCII one by one, in octal.
    decoded = _ESCAPE.sub(_unescaped, inner)
    try:
        return decoded.encode("latin-1").decode()
    except UnicodeError:
        return decoded


def _unescaped(escape: re.Match[str]) -> str:
    sign = escape[1]
    if sign[0] == "x" and len(sign) > 1:
        return chr(int(sign[1:], 16))
    if sign[0] in "01234567":
        return chr(int(sign, 8) & 0xFF)
    return _ESCAPED.get(sign, sign)


Frames = tuple[SourceLine, ...]

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
"""The tables of source lines at the head of a module, as `SourceTables` reads them."""

_ENTRY = re.compile(rf"(\d{{1,9}}) (?:({QUOTED})|\{{([^}}]*+)\}})")
_FIELD = re.compile(r"(\w++)=(\d{1,9})")
_SOURCE = re.compile(rf"source_file=({QUOTED}) source_line=(\d{{1,9}})")


class SourceTables:
    """The tables that number files, functions, locations and stack frames."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._fields: dict[tuple[str, int], dict[str, int]] = {}
        self._frames: dict[int, Frames] = {}

    def add(self, table: str, line: str) -> bool:
        """Read a line of a table; return False if it is not one."""
        entry = _ENTRY.match(line)
        if entry is None:
            return False
        number, name, fields = int(entry[1]), entry[2], entry[3]
        if name is not None:
            self._names[table, number] = unquote(name)
        else:
            self._fields[table, number] = {key: int(value) for key, value in _FIELD.findall(fields)}
        return True

    def frames(self, frame_id: int) -> Frames:
        """Return the source lines of a stack frame, innermost first, without repetitions of callers by JAX."""
        if frame_id not in self._frames:
            self._frames[frame_id] = tuple(dict.fromkeys(self._walk(frame_id)))
        return self._frames[frame_id]

    def _walk(self, frame_id: int) -> Iterator[SourceLine]:
        # XLA prints the parent's number plus one, so that an outermost frame, whose parent is 0, seems to name frame 1.
        # If it ever prints the number itself, the first frame will no longer look like its own parent.
        first = self._fields.get(("StackFrames", 1), {})
        surplus = 1 if first.get("parent_frame_id") == 1 else 0
        seen: set[int] = set()
        while frame_id not in seen and (frame := self._fields.get(("StackFrames", frame_id))):
            seen.add(frame_id)
            location = self._fields.get(("FileLocations", frame.get("file_location_id", 0)), {})
            file = self._names.get(("FileNames", location.get("file_name_id", 0)))
            if file is not None:
                function = self._names.get(("FunctionNames", location.get("function_name_id", 0)), "")
                yield SourceLine(file, location.get("line", 0), function)
            frame_id = frame.get("parent_frame_id", 0) - surplus


def read_metadata(text: str, start: int, frames: Callable[[int], Frames]) -> tuple[str, Frames]:
    """Return the op name and the source lines in an instruction's metadata.

    Args:
        text: the instruction.
        start: where its metadata starts.
        frames: returns the source lines of a stack frame.
    """
    # Plain searches come first: a module has hundreds of thousands of these.
    named = text.find("op_name=", start)
    name = _QUOTED.match(text, named + 8) if named > 0 else None
    op_name = unquote(name[0]) if name else ""
    framed = text.find("stack_frame_id=", start)
    frame = _NUMBER.match(text, framed + 15) if framed > 0 else None
    if frame and (lines := frames(int(frame[0]))):
        return op_name, lines
    source = _SOURCE.search(text, start) if "source_file=" in text else None
    if source is None:
        return op_name, ()
    return op_name, (SourceLine(unquote(source[1]), int(source[2]), ""),)
