"""`MeshSpec`: a mesh as names and sizes, before there are devices. Pure: nothing here imports JAX."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from outlay.core.error_types import MeshError
from outlay.core.suggest import did_you_mean
from outlay.devices.fit import MAY_CROSS_HOSTS, check_hosts, fill_open_axis


@dataclass(frozen=True, init=False, repr=False)
class MeshSpec:
    """Names and sizes of mesh axes, outermost first, and which of them may run over several hosts.

    Attributes:
        axes: (name, size) of each axis; at most one size is -1, "all the devices that are left".
        over: (name, declaration) of each axis that has one: it runs over "hosts" (may cross them) or inside a
            "host". Undeclared, the axes data, replica, fsdp and batch may cross hosts and no other axis may.

    >>> spec = MeshSpec({"data": -1, "model": 2}, over={"model": "host"})
    >>> spec.resolve(num_devices=8)
    MeshSpec.parse('data=4,model=2@host')

    Raises:
        MeshError: names, sizes or declarations that cannot be; the message lists all of them.
    """

    axes: tuple[tuple[str, int], ...]
    over: tuple[tuple[str, Over], ...]

    def __init__(self, axes: Mapping[str, int], over: Mapping[str, str] | None = None) -> None:
        pairs: list[tuple[str, Any]] = [(name, _whole(size)) for name, size in axes.items()]
        declared: dict[str, Any] = dict(over or {})
        problems = [*_axes_problems(pairs), *_over_problems(declared, [name for name, _ in pairs])]
        if problems:
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise MeshError(f"these axes make no mesh; one is like {EXAMPLE}\n{lines}")
        object.__setattr__(self, "axes", tuple(pairs))
        # In the order of the axes, so that equal declarations make equal specs.
        object.__setattr__(self, "over", tuple((n, declared[n]) for n, _ in pairs if n in declared))

    @classmethod
    def parse(cls, text: str) -> MeshSpec:
        """Read the text form: sizes by name, and `@hosts` or `@host` after the size of an axis declared so.

        >>> MeshSpec.parse("data=-1, model=2").axis_sizes
        {'data': -1, 'model': 2}

        Raises:
            MeshError: the text does not parse; the message points at the place.
        """
        return cls(*read_spec(text))

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Axis name to size, outermost first."""
        return dict(self.axes)

    @property
    def crossing(self) -> tuple[str, ...]:
        """The axes that may cross hosts: as declared, else by their names."""
        default = dict.fromkeys(MAY_CROSS_HOSTS, "hosts") | dict(self.over)
        return tuple(name for name, _ in self.axes if default.get(name) == "hosts")

    def resolve(self, num_devices: int, num_hosts: int = 1, *, target: str = "", host: str = "host") -> MeshSpec:
        """Replace -1 by the devices that are left; check that all devices are used and that axes stay inside hosts.

        Args:
            num_devices: the devices in all.
            num_hosts: the hosts they are on, as many on each.
            target: the target they belong to, if they are of one, for messages.
            host: what messages call a host; of TPUs it is a slice.

        Raises:
            MeshError: sizes and devices do not fit; the message shows the arithmetic and what would fit.
        """
        sizes = fill_open_axis(self.axis_sizes, num_devices, target)
        check_hosts(sizes, self.crossing, dict(self.over), num_devices, num_hosts, host, target)
        return MeshSpec(sizes, dict(self.over))

    def __str__(self) -> str:
        """The text form; `MeshSpec.parse` reads it back."""
        at = {name: f"@{where}" for name, where in self.over}
        return ",".join(f"{name}={size}{at.get(name, '')}" for name, size in self.axes)

    def __repr__(self) -> str:
        return f"MeshSpec.parse({str(self)!r})"


def _whole(size: Any) -> Any:
    """Sizes computed with NumPy become plain integers; what is no integer is left for the checks to name."""
    try:
        return size if isinstance(size, bool) else operator.index(size)
    except TypeError:
        return size


def _axes_problems(pairs: list[tuple[str, Any]]) -> list[str]:
    if not pairs:
        return ["there is no axis"]
    problems = [problem for name, _ in pairs if (problem := name_problem(name))]
    problems += [problem for name, size in pairs if (problem := size_problem(name, size))]
    open_axes = [name for name, size in pairs if size == -1]
    if len(open_axes) > 1:
        problems.append(f"only one size can be -1, not those of {' and '.join(map(repr, open_axes))}")
    return problems


def _over_problems(declared: dict[str, Any], names: list[str]) -> list[str]:
    problems = [f"over= declares {name!r}, {did_you_mean(name, names)}" for name in declared if name not in names]
    return problems + [problem for name, where in declared.items() if (problem := over_problem(name, where))]


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
