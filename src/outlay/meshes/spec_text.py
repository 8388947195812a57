"""The text form of a mesh spec, `data=4,model=2@host`: reading it, and pointing at what does not parse."""

from __future__ import annotations

import re
from typing import Literal, NoReturn, get_args

from outlay.core.errors import MeshError

Over = Literal["hosts", "host"]
EXAMPLE = "data=4,model=2"
# Nine digits are more devices than there will be, and keep int() away from texts it refuses to convert.
_SIZE = re.compile(r"[0-9]{1,9}|-1")


def read_spec(text: str) -> tuple[dict[str, int], dict[str, Over]]:
    """Axes and declarations of a text such as `data=4, model=2@host`.

    Raises:
        MeshError: the text does not parse; the message shows it with a mark below the place.
    """
    axes: dict[str, int] = {}
    over: dict[str, Over] = {}
    start = 0
    for part in text.split(","):
        name, size, where = _read_axis(text, part, start)
        if name in axes:
            _refuse(text, start, part, f"axis {name!r} is there twice")
        if size == -1 and -1 in axes.values():
            _refuse(text, start, part, "only one size can be -1, the devices that are left")
        axes[name] = size
        if where is not None:
            over[name] = where
        start += len(part) + 1
    return axes, over


def name_problem(name: object) -> str | None:
    """What is wrong with an axis name, if anything."""
    if isinstance(name, str) and name.isidentifier():
        return None
    return f"axis name {name!r} must be letters, digits and _, not starting with a digit"


def size_problem(name: str, size: object) -> str | None:
    """What is wrong with the size of an axis, if anything."""
    if isinstance(size, int) and not isinstance(size, bool) and (size >= 1 or size == -1):
        return None
    return f"size of {name!r} must be at least 1, or -1 for the devices that are left, not {size!r}"


def over_problem(name: str, where: object) -> str | None:
    """What is wrong with the declaration of an axis, if anything."""
    if where in get_args(Over):
        return None
    return f"{name!r} must run over 'hosts' (it may cross them) or inside one 'host', not {where!r}"


def _read_axis(text: str, part: str, start: int) -> tuple[str, int, Over | None]:
    """Name, size and declaration of one axis; `start` is where `part` begins in `text`."""
    if not part.strip():
        _refuse(text, start, part, "an axis is missing here")
    name, equals, rest = part.partition("=")
    if not equals:
        _refuse(text, start, part, f"{part.strip()!r} has no size: write {part.strip()}=4")
    size, at, where = rest.partition("@")
    at_size = start + len(name) + 1
    if problem := name_problem(name.strip()):
        _refuse(text, start, name, problem)
    if not _SIZE.fullmatch(size.strip()):
        what = f"size of {name.strip()!r} must be a whole number or -1, not {size.strip()!r}"
        _refuse(text, at_size, size, what)
    if problem := size_problem(name.strip(), int(size)):
        _refuse(text, at_size, size, problem)
    if not at:
        return name.strip(), int(size), None
    if problem := over_problem(name.strip(), where.strip()):
        _refuse(text, at_size + len(size) + 1, where, problem)
    return name.strip(), int(size), "hosts" if where.strip() == "hosts" else "host"


def _refuse(text: str, start: int, part: str, what: str) -> NoReturn:
    """Raise, marking the first character of `part`, which begins at `start`, that is not a space."""
    column = start + len(part) - len(part.lstrip()) if part.strip() else start
    # Lines of their own, so that nothing printed before the message shifts the mark.
    shown = "".join(char if char.isprintable() else "?" for char in text)
    raise MeshError(f"{what}; a mesh is like {EXAMPLE}, not\n  {shown}\n  {' ' * column}^")
