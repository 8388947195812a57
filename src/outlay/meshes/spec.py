"""`MeshSpec`: a mesh as names and sizes, before there are devices. Pure: nothing here imports JAX."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlay.core.errors import MeshError
from outlay.core.suggest import did_you_mean
from outlay.meshes.fit import MAY_CROSS_HOSTS, check_hosts, fill_open_axis
from outlay.meshes.spec_text import EXAMPLE, Over, name_problem, over_problem, read_spec, size_problem


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
