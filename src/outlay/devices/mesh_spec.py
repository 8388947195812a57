"""`MeshSpec`: a mesh as names and sizes, and the arithmetic that fits it to devices. Pure: nothing here imports JAX."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from outlay.core.error_types import MeshError
from outlay.core.quantities import counted, plural

Over = Literal["hosts", "host"]
EXAMPLE = "data=4,model=2"
# Nine digits hold any number of devices, and keep int() away from texts that it refuses to convert.
_SIZE = re.compile(r"[0-9]{1,9}|-1")

# Along these axes only gradients or gathered parameters travel, a few times per step: the network between hosts is fast
# enough. Any other axis may carry activations, and stays inside a host unless declared otherwise.
MAY_CROSS_HOSTS = ("data", "replica", "fsdp", "batch")


@dataclass(frozen=True, init=False, repr=False)
class MeshSpec:
    """Names and sizes of mesh axes, outermost first, and which of them may run over several hosts.

    Attributes:
        axes: (name, size) of each axis; at most one size is -1, for all remaining devices.
        over: (name, declaration) of each axis that has one: it runs over "hosts" (may cross them) or inside a
            "host". Undeclared, the axes data, replica, fsdp and batch may cross hosts and no other axis may.

    >>> spec = MeshSpec({"data": -1, "model": 2}, over={"model": "host"})
    >>> spec.resolve(num_devices=8)
    MeshSpec.parse('data=4,model=2@host')

    Raises:
        MeshError: names, sizes or declarations are invalid; the message lists all of them.
    """

    axes: tuple[tuple[str, int], ...]
    over: tuple[tuple[str, Over], ...]

    def __init__(self, axes: Mapping[str, int], over: Mapping[str, str] | None = None) -> None:
        pairs: list[tuple[str, Any]] = [(name, _as_int(size)) for name, size in axes.items()]
        declared: dict[str, Any] = dict(over or {})
        problems = [*_axes_problems(pairs), *_over_problems(declared, [name for name, _ in pairs])]
        if problems:
            lines = "\n".join(f"  {problem}" for problem in problems)
            raise MeshError(f"these axes do not make a mesh (an example of one: {EXAMPLE})\n{lines}")
        object.__setattr__(self, "axes", tuple(pairs))
        # In the order of the axes, so that equal declarations make equal specs.
        object.__setattr__(self, "over", tuple((n, declared[n]) for n, _ in pairs if n in declared))

    @classmethod
    def parse(cls, text: str) -> MeshSpec:
        """Read the text form: sizes by name, with `@hosts` or `@host` after the size of a declared axis.

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
        """Replace -1 by the remaining devices; check that all devices are used and that axes stay inside hosts.

        Args:
            num_devices: the number of devices.
            num_hosts: the number of hosts, each with the same number of devices.
            target: the target that the devices belong to, if any, for messages.
            host: what messages call a host; for TPUs it is a slice.

        Raises:
            MeshError: sizes and devices do not fit; the message shows the arithmetic and what would fit.
        """
        sizes = fill_open_axis(self.axis_sizes, num_devices, target)
        check_hosts(sizes, self.crossing, dict(self.over), num_devices, num_hosts, host, target)
        return MeshSpec(sizes, dict(self.over))

    def __str__(self) -> str:
        """Return the text form; `MeshSpec.parse` reads it back."""
        at = {name: f"@{where}" for name, where in self.over}
        return ",".join(f"{name}={size}{at.get(name, '')}" for name, size in self.axes)

    def __repr__(self) -> str:
        return f"MeshSpec.parse({str(self)!r})"


def _as_int(size: Any) -> Any:
    """Return a size computed with NumPy as a Python integer; return anything else unchanged, for the checks to name."""
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
        problems.append(f"only one size can be -1, but these are: {' and '.join(map(repr, open_axes))}")
    return problems


def _over_problems(declared: dict[str, Any], names: list[str]) -> list[str]:
    problems = []
    if unknown := [name for name in declared if name not in names]:
        from outlay.core.suggest import did_you_mean

        problems = [f"over= declares {name!r}, {did_you_mean(name, names)}" for name in unknown]
    return problems + [problem for name, where in declared.items() if (problem := over_problem(name, where))]


def read_spec(text: str) -> tuple[dict[str, int], dict[str, Over]]:
    """Read axes and declarations from a text such as `data=4, model=2@host`.

    Raises:
        MeshError: the text does not parse; the message marks the place.
    """
    axes: dict[str, int] = {}
    over: dict[str, Over] = {}
    start = 0
    for part in text.split(","):
        name, size, where = _read_axis(text, part, start)
        if name in axes:
            _refuse(text, start, part, f"axis {name!r} is given twice")
        if size == -1 and -1 in axes.values():
            _refuse(text, start, part, "only one size can be -1, for all remaining devices")
        axes[name] = size
        if where is not None:
            over[name] = where
        start += len(part) + 1
    return axes, over


def name_problem(name: object) -> str | None:
    """Return what is wrong with an axis name, or None."""
    if isinstance(name, str) and name.isidentifier():
        return None
    return f"axis name {name!r} must be letters, digits and _, not starting with a digit"


def size_problem(name: str, size: object) -> str | None:
    """Return what is wrong with the size of an axis, or None."""
    if isinstance(size, int) and not isinstance(size, bool) and (size >= 1 or size == -1):
        return None
    number = str(size).removesuffix(".0") if isinstance(size, str | float) else ""
    fix = f": write {name}={number}" if number.isdigit() else ""
    return f"size of {name!r} must be at least 1, or -1 for all remaining devices, not {size!r}{fix}"


def over_problem(name: str, where: object) -> str | None:
    """Return what is wrong with the declaration of an axis, or None."""
    if where in get_args(Over):
        return None
    return f"{name!r} must run over 'hosts' (it may cross them) or inside one 'host', not {where!r}"


def _read_axis(text: str, part: str, start: int) -> tuple[str, int, Over | None]:
    """Read name, size and declaration of one axis; `start` is where `part` begins in `text`."""
    if not part.strip():
        _refuse(text, start, part, "an axis is missing here")
    name, equals, rest = part.partition("=")
    if not equals:
        _refuse(text, start, part, f"{part.strip()!r} has no size: write {part.strip()}=4")
    size, at, where = rest.partition("@")
    at_size = start + len(name) + 1
    if problem := name_problem(name.strip()):
        _refuse(text, start, name, problem)
    if (words := part.split())[1:] and all(re.fullmatch(r"\w+=-?\d+(@\w+)?", word) for word in words):
        _refuse(text, at_size, size, f"axes are separated by commas: write {','.join(words)}")
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
    """Raise, marking the first non-space character of `part`, which begins at `start`."""
    column = start + len(part) - len(part.lstrip()) if part.strip() else start
    # Lines of their own, so that nothing printed before the message shifts the mark.
    shown = "".join(char if char.isprintable() else "?" for char in text)
    raise MeshError(f"{what}; write a mesh like {EXAMPLE}\n  {shown}\n  {' ' * column}^")


def fill_open_axis(sizes: Mapping[str, int], num_devices: int, target: str = "") -> dict[str, int]:
    """Replace -1 by the remaining devices, and check that all devices are used.

    Args:
        sizes: size of each axis; at most one is -1.
        num_devices: the number of devices.
        target: the target that they belong to, if any, for messages.

    Raises:
        MeshError: the sizes do not multiply to the devices.
    """
    fixed = math.prod(size for size in sizes.values() if size != -1)
    filled = {name: num_devices // fixed if size == -1 else size for name, size in sizes.items()}
    if num_devices < 1 or math.prod(filled.values()) != num_devices:
        raise MeshError(_unused_devices(sizes, fixed, num_devices, target))
    return filled


def check_hosts(
    sizes: Mapping[str, int],
    crossing: Sequence[str],
    declared: Mapping[str, str],
    num_devices: int,
    num_hosts: int,
    host: str = "host",
    target: str = "",
) -> None:
    """Raise if an axis that stays inside a host would have to cross hosts.

    Args:
        sizes: size of each axis, multiplying to `num_devices`.
        crossing: the axes that may cross hosts.
        declared: the user's declarations of axes, for messages.
        num_devices: the number of devices.
        num_hosts: the number of hosts they are on.
        host: what messages call a host: TPUs of a slice are linked as if they were on one host.
        target: the target that the devices belong to, if any, for messages.

    Raises:
        MeshError: some axis would have to cross hosts.
    """
    per_host, left = divmod(num_devices, num_hosts)
    if left:
        raise MeshError(
            f"{num_devices} devices cannot be spread evenly over {num_hosts} {host}s\n"
            f"  fix: use {num_devices - left} of them, the same number on every {host}"
        )
    inside = {name: size for name, size in sizes.items() if name not in crossing}
    if per_host % math.prod(inside.values()):
        raise MeshError(_would_cross(sizes, inside, declared, per_host, num_hosts, host, target))


def nearest_sizes(sizes: Mapping[str, int], product: int) -> dict[str, int]:
    """Return sizes that multiply to `product` and differ little from the given ones, in one axis if that is enough.

    >>> nearest_sizes({"data": 4, "model": 3}, product=8)
    {'data': 4, 'model': 2}
    """
    if not sizes:
        return {}
    others = {name: math.prod(size for n, size in sizes.items() if n != name) for name in sizes}
    one_changed = [{**sizes, name: product // rest} for name, rest in others.items() if product % rest == 0]
    if one_changed:
        return min(one_changed, key=lambda fit: sum(_distance(fit[name], sizes[name]) for name in sizes))
    fit, left = {}, product
    *first, last = sizes  # what is left over goes to the innermost axis
    for name in first:
        fit[name] = _nearest_divisor(sizes[name], left)
        left //= fit[name]
    return {**fit, last: left}


def _distance(size: int, other: int) -> float:
    return abs(math.log(size / other))


def _nearest_divisor(size: int, of: int) -> int:
    low = [d for d in range(1, math.isqrt(of) + 1) if of % d == 0]
    return min({*low, *(of // d for d in low)}, key=lambda d: (_distance(d, size), d))


def _unused_devices(sizes: Mapping[str, int], fixed: int, num_devices: int, target: str) -> str:
    if num_devices < 1:
        return f"{_product(sizes)}: there are no devices to arrange"
    many = counted(num_devices, "device")
    there = f"{target} has {many}" if target else f"there {plural(num_devices, 'is', 'are')} {many}"
    argument = _target_argument(target)
    given = {name: size for name, size in sizes.items() if size != -1}
    if len(given) < len(sizes):
        what = f"{_product(sizes)}: {there}, and {num_devices} is not a multiple of {_product(given)}"
        near = nearest_sizes({**given, "": max(1, num_devices // fixed)}, num_devices)
        fits = {name: near.get(name, near[""]) for name in sizes}
        fewer, more = num_devices // fixed * fixed, -(-num_devices // fixed) * fixed
    else:
        what = f"{_product(sizes)}{f' = {fixed}' if len(sizes) > 1 else ''}, but {there}"
        fits = nearest_sizes(sizes, num_devices)
        fewer, more = (fixed if fixed < num_devices else 0), fixed
    product = f" ({num_devices} = {' x '.join(map(str, fits.values()))})" if len(fits) > 1 else ""
    fixes = [f"fix: {_call(fits, *argument)}{product}"]
    if len(given) == len(sizes):
        fixes += [
            f"or let one axis take all remaining devices: {_call({**sizes, name: -1}, *argument)}"
            for name, size in sizes.items()
            if fits[name] != size and num_devices % (fixed // size) == 0
        ]
    if target:
        amounts = " or ".join(f"{count}" for count in dict.fromkeys((fewer, more)) if count)
        return "\n".join([what, *(f"  {fix}" for fix in fixes), f"  or a target of {amounts} devices"])
    if fewer:
        fixes.append(f"or use {fewer} of the {num_devices}: {_call(sizes, f'devices=jax.devices()[:{fewer}]')}")
    if more > num_devices:
        fixes.append(f"or try it on {more} simulated devices: outlay.simulate({more}) before anything else uses JAX")
    return "\n".join([what, *(f"  {fix}" for fix in fixes)])


def _would_cross(
    sizes: Mapping[str, int],
    inside: Mapping[str, int],
    declared: Mapping[str, str],
    per_host: int,
    num_hosts: int,
    host: str,
    target: str,
) -> str:
    split = {name: size for name, size in inside.items() if size > 1}
    group = math.prod(split.values())
    names = " and ".join(repr(name) for name in split)
    product = f"{_product(split)} = {group}" if len(split) > 1 else f"{_product(split)}"
    crossed = f"over {-(-group // per_host)} {host}s" if group > per_host else f"in part over two {host}s"
    near = nearest_sizes(inside, _nearest_divisor(group, per_host))
    left = per_host * num_hosts // math.prod(near.values())
    outer = nearest_sizes({n: size for n, size in sizes.items() if n not in inside}, left) or {"data": left}
    fits = {name: (near | outer)[name] for name in ([*sizes] if outer.keys() <= sizes.keys() else [*outer, *sizes])}
    over = {**declared, **dict.fromkeys(split, "hosts")}
    lines = [
        f"{plural(len(split), 'axis', 'axes')} {names} must stay inside a {host}, but a {host} has {per_host} devices "
        f"({per_host * num_hosts} on {num_hosts} {host}s): groups of {product} would run {crossed}",
        f"  fix: {_call(fits, *_target_argument(target))}",
        f"  or let it cross, over the slower network: over={over}",
    ]
    if undeclared := [repr(name) for name in split if name not in declared]:
        lines.append(
            f"  (unless declared, only {', '.join(MAY_CROSS_HOSTS)} cross {host}s, not {', '.join(undeclared)})"
        )
    return "\n".join(lines)


def _target_argument(target: str) -> tuple[str, ...]:
    return (f"target={target!r}",) if target else ()


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in sizes.items())


def _call(sizes: Mapping[str, int], *more: str) -> str:
    return f"outlay.mesh({', '.join([*(f'{name}={size}' for name, size in sizes.items()), *more])})"
