"""`Target`: the devices that a layout is planned for, in text form `h100:32x8`. Pure: nothing here imports JAX."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from outlay.core.error_types import TargetError
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.hardware import Hardware, hardware_in, known_hardware

EXAMPLES = "h100:32x8 (hosts x devices per host), tpu-v5e:4x4 (a torus), tpu-v5e:4x4*2 (two slices) or cpu:8"
# Six digits hold any number of devices.
_SHAPE = re.compile(r"([1-9][0-9]{0,5}(?:x[1-9][0-9]{0,5})*)(?:\*([1-9][0-9]{0,5}))?")


@dataclass(frozen=True)
class Target(OneLine):
    """Hardware and how much of it: the devices of a mesh, attached or not.

    Attributes:
        hardware: the kind of device.
        shape: for cpu `(devices,)`; for gpu `(hosts, devices per host)`; for tpu the torus of a slice, such as `(2, 2,
            4)`.
        num_slices: TPU slices, connected by the network instead of the torus; 1 for other hardware.

    >>> target = Target.parse("h100:32x8")
    >>> target.num_devices, target.num_hosts, str(target)
    (256, 32, 'h100:32x8')

    Raises:
        TargetError: the shape does not suit the hardware.
    """

    hardware: Hardware
    shape: tuple[int, ...]
    num_slices: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read the text form, `hardware:shape`; hardware is a name, or a file of its own: `my_cpu.toml:8`.

        Raises:
            TargetError: the hardware is unknown, or the shape does not suit it.

        >>> Target.parse("tpu-v5e:4x4*2")
        Target.parse('tpu-v5e:4x4*2')
        """
        key, colon, rest = text.strip().partition(":")
        known = {key: hardware_in(key)} if key.endswith(".toml") else known_hardware()
        if key not in known:
            raise TargetError(
                f"{text!r}: there is no hardware {key!r}, {did_you_mean(key.lower(), known)}\n"
                f"  known: {', '.join(known)}\n"
                "  fix: correct the name, or describe the hardware in your own file of targets"
            )
        hardware = known[key]
        match = _SHAPE.fullmatch(rest)
        if not colon or match is None:
            what = "it has no shape" if not rest else f"{rest!r} is not a shape"
            raise TargetError(f"{text!r}: {what}\n  fix: write {example_of(hardware)}; targets are {EXAMPLES}")
        shape = tuple(int(size) for size in match[1].split("x"))
        return cls(hardware, shape, int(match[2] or 1))

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape) * self.hardware.devices_per_chip * self.num_slices

    @property
    def has_host_memory(self) -> bool:
        """Whether the host has a memory apart from that of the devices; for CPU devices it is the same."""
        return self.hardware.kind != "cpu"

    @property
    def torus(self) -> tuple[int, ...]:
        """For TPUs the sizes of a slice's torus, then the devices of a chip if there are several; else empty."""
        if self.hardware.kind != "tpu":
            return ()
        each = self.hardware.devices_per_chip
        return (*self.shape, each) if each > 1 else self.shape

    @property
    def num_hosts(self) -> int:
        """The number of hosts; 1 for cpu."""
        if self.hardware.kind == "cpu":
            return 1
        if self.hardware.kind == "gpu":
            return self.shape[0]
        return max(1, math.prod(self.torus) // (self.hardware.devices_per_host or 1)) * self.num_slices

    @property
    def island(self) -> str:
        """What fast links connect, in a word; several of them are connected by the network: a host, on TPUs a slice."""
        return "slice" if self.hardware.kind == "tpu" else "host"

    @property
    def num_islands(self) -> int:
        """The number of hosts, on TPUs of slices."""
        return self.num_slices if self.hardware.kind == "tpu" else self.num_hosts

    @property
    def is_compile_only(self) -> bool:
        """Whether nothing can run on it here: true for all but cpu, whose devices are simulated."""
        return self.hardware.kind != "cpu"

    def __str__(self) -> str:
        """Return the text form; `Target.parse` reads it back."""
        slices = f"*{self.num_slices}" if self.num_slices > 1 else ""
        return f"{self.hardware.file or self.hardware.key}:{'x'.join(map(str, self.shape))}{slices}"

    def __repr__(self) -> str:
        return f"Target.parse({str(self)!r})"


def _check(target: Target) -> None:
    hardware, shape = target.hardware, target.shape
    if target.num_slices > 1 and hardware.kind != "tpu":
        fix = f"{hardware.key}:{shape[0] * target.num_slices}{''.join(f'x{size}' for size in shape[1:])}"
        raise TargetError(f"{str(target)!r}: only TPUs come in slices\n  fix: write {fix}")
    if not shape or min(shape) < 1 or target.num_slices < 1:
        raise TargetError(f"{str(target)!r}: every size must be at least 1\n  fix: write {example_of(hardware)}")
    {"cpu": _check_cpu, "gpu": _check_gpu, "tpu": _check_tpu}[hardware.kind](target)


def _check_cpu(target: Target) -> None:
    if len(target.shape) != 1:
        _refuse(target, "simulated devices have one number", [f"cpu:{target.num_devices}"])


def _check_gpu(target: Target) -> None:
    key, shape = target.hardware.key, target.shape
    per_host = target.hardware.devices_per_host or 1
    if len(shape) == 2:
        hosts, devices = shape
        if devices > per_host:
            total = hosts * devices
            what = f"{hosts} hosts x {devices} devices = {total}, but a host has at most {per_host} {key}"
            _refuse(target, what, [f"{key}:{-(-total // per_host)}x{per_host}"], own_file=True)
    elif len(shape) == 1:
        meanings = [
            f"{key}:{hosts}x{devices} ({counted(hosts * devices, 'device')})"
            for hosts, devices in _meanings(shape[0], per_host)
        ]
        _refuse(target, f"is {shape[0]} the hosts or the devices? A GPU target is hosts x devices per host", meanings)
    else:
        what = f"a GPU target is hosts x devices per host, but it has {len(shape)} numbers"
        _refuse(target, what, [example_of(target.hardware)])


def _meanings(count: int, per_host: int) -> list[tuple[int, int]]:
    """Return what one number of GPUs may mean, as (hosts, devices per host): that many devices, or full hosts."""
    as_devices = [(1, count)] if count <= per_host else [(count // per_host, per_host)] if count % per_host == 0 else []
    return list(dict.fromkeys([*as_devices, (count, per_host)]))


def _check_tpu(target: Target) -> None:
    hardware, shape = target.hardware, target.shape
    if len(shape) == hardware.torus_dims:
        return
    torus = "x".join(map(str, _near_cube(math.prod(shape), hardware.torus_dims or 1)))
    slices = f"*{target.num_slices}" if target.num_slices > 1 else ""
    what = f"the torus of {hardware.key} has {hardware.torus_dims} dims, but there {_count(len(shape))}"
    _refuse(target, what, [f"{hardware.key}:{torus}{slices}"])


def _refuse(target: Target, what: str, fixes: list[str], *, own_file: bool = False) -> NoReturn:
    lines = [f"{str(target)!r}: {what}", f"  fix: write {' or '.join(fixes)}"]
    if own_file:
        lines.append("  or set devices_per_host in your own file of targets")
    raise TargetError("\n".join(lines))


def _count(number: int) -> str:
    return f"is {number} number" if number == 1 else f"are {number} numbers"


def _near_cube(product: int, num_dims: int) -> tuple[int, ...]:
    """Return sizes that multiply to `product`, as equal as possible, smallest first."""
    if num_dims == 1:
        return (product,)
    root = round(product ** (1 / num_dims))  # rounded: the cube root of 64 is 3.9999999999999996 in float64
    size = max(d for d in range(1, root + 1) if product % d == 0)
    return (size, *_near_cube(product // size, num_dims - 1))


def example_of(hardware: Hardware) -> str:
    """Return a target of this hardware, as text: one host, or a small torus."""
    if hardware.kind == "cpu":
        return "cpu:8"
    if hardware.kind == "gpu":
        return f"{hardware.key}:1x{hardware.devices_per_host}"
    return f"{hardware.key}:{'x'.join(['4'] * (hardware.torus_dims or 2))}"
