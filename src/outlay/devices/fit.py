"""The arithmetic of axes and devices: fill in -1, use every device, keep axes inside hosts; and what would fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outlay.core.error_types import MeshError
from outlay.core.quantities import counted

# Over these only gradients or gathered parameters travel, a few times a step: the network between hosts will do.
# Any other axis may carry activations and stays inside a host unless declared otherwise.
MAY_CROSS_HOSTS = ("data", "replica", "fsdp", "batch")


def fill_open_axis(sizes: Mapping[str, int], num_devices: int, target: str = "") -> dict[str, int]:
    """Sizes with -1 replaced by the devices that are left; all devices are used.

    Args:
        sizes: size of each axis; at most one is -1.
        num_devices: the devices in all.
        target: the target they belong to, if they are of one, for messages.

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
    """Check that the axes which stay inside a host fill whole hosts.

    Args:
        sizes: size of each axis, multiplying to `num_devices`.
        crossing: the axes that may cross hosts.
        declared: what the user declared, to say why an axis stays inside.
        num_devices: the devices in all.
        num_hosts: the hosts they are on.
        host: what messages call a host: TPUs of a slice are joined as if they were on one host.
        target: the target the devices belong to, if they are of one, for messages.

    Raises:
        MeshError: some axis would have to cross hosts.
    """
    per_host, left = divmod(num_devices, num_hosts)
    if left:
        raise MeshError(f"{num_devices} devices cannot be spread evenly over {num_hosts} {host}s")
    inside = {name: size for name, size in sizes.items() if name not in crossing}
    if per_host % math.prod(inside.values()):
        raise MeshError(_would_cross(sizes, inside, declared, per_host, num_hosts, host, target))


def nearest_sizes(wanted: Mapping[str, int], product: int) -> dict[str, int]:
    """Sizes that multiply to `product` and differ little from the wanted ones: one axis changes if that is enough.

    >>> nearest_sizes({"data": 4, "model": 3}, product=8)
    {'data': 4, 'model': 2}
    """
    if not wanted:
        return {}
    others = {name: math.prod(size for n, size in wanted.items() if n != name) for name in wanted}
    one_changed = [{**wanted, name: product // rest} for name, rest in others.items() if product % rest == 0]
    if one_changed:
        return min(one_changed, key=lambda sizes: sum(_distance(sizes[name], wanted[name]) for name in wanted))
    found, left = {}, product
    *first, last = wanted
    for name in first:
        found[name] = _nearest_divisor(wanted[name], left)
        left //= found[name]
    return {**found, last: left}


def _distance(size: int, wanted: int) -> float:
    return abs(math.log(size / wanted))


def _nearest_divisor(wanted: int, of: int) -> int:
    low = [d for d in range(1, math.isqrt(of) + 1) if of % d == 0]
    return min({*low, *(of // d for d in low)}, key=lambda d: (_distance(d, wanted), d))


def _unused_devices(sizes: Mapping[str, int], fixed: int, num_devices: int, target: str) -> str:
    if num_devices < 1:
        return f"{_product(sizes)}: there are no devices to arrange"
    many = counted(num_devices, "device")
    there = f"{target} has {many}" if target else f"there {'is' if num_devices == 1 else 'are'} {many}"
    to_pass = _passing(target)
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
    fixes = [f"fix: {_call(fits, *to_pass)}{product}"]
    if len(given) == len(sizes):
        fixes += [
            f"or let one axis take all that is left: {_call({**sizes, name: -1}, *to_pass)}"
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
    many = {name: size for name, size in inside.items() if size > 1}
    group = math.prod(many.values())
    names = " and ".join(repr(name) for name in many)
    product = f"{_product(many)} = {group}" if len(many) > 1 else f"{_product(many)}"
    crossed = f"over {-(-group // per_host)} {host}s" if group > per_host else f"in part over two {host}s"
    near = nearest_sizes(inside, _nearest_divisor(group, per_host))
    left = per_host * num_hosts // math.prod(near.values())
    outer = nearest_sizes({n: size for n, size in sizes.items() if n not in inside}, left) or {"data": left}
    fits = {name: (near | outer)[name] for name in ([*sizes] if outer.keys() <= sizes.keys() else [*outer, *sizes])}
    over = {**declared, **dict.fromkeys(many, "hosts")}
    lines = [
        f"ax{'i' if len(many) == 1 else 'e'}s {names} must stay inside a {host}, but a {host} has {per_host} devices "
        f"({per_host * num_hosts} on {num_hosts} {host}s): groups of {product} would run {crossed}",
        f"  fix: {_call(fits, *_passing(target))}",
        f"  or let it cross, over the slower network: over={over}",
    ]
    if undeclared := [repr(name) for name in many if name not in declared]:
        lines.append(
            f"  (unless declared, only {', '.join(MAY_CROSS_HOSTS)} cross {host}s, not {', '.join(undeclared)})"
        )
    return "\n".join(lines)


def _passing(target: str) -> tuple[str, ...]:
    return (f"target={target!r}",) if target else ()


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in sizes.items())


def _call(sizes: Mapping[str, int], *more: str) -> str:
    return f"outlay.mesh({', '.join([*(f'{name}={size}' for name, size in sizes.items()), *more])})"
