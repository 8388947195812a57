"""`Hardware`: the numbers of one kind of device, built in or from the user's file. Pure: nothing here imports JAX."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from outlay.core.error_types import TargetError
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted
from outlay.devices.hardware_file import COMPILER_KEYS, Table, overlay, read_tables
from outlay.devices.measured import Measured

HardwareKind = Literal["cpu", "gpu", "tpu"]

USER_FILE = "OUTLAY_TARGETS"
"""The environment variable that names the user's file of targets."""

BUILT_IN = "built in"

# Defaults by kind for what a table leaves out. Latencies are per step of a collective, floors per collective, inside
# a host (TPU: inside a slice) and between hosts. The shortest collectives of eight A100, H200 and B200 take 38 to
# 50 us, over four hosts of B200 358 us (nccl-tests, as collected by stas00/ml-engineering); a TPU's program starts
# them itself. Host memory: PCIe 4 x16, which reaches 25 of its 32 GB/s; for TPUs as in "How to Scale Your Model"
# (jax-ml.github.io/scaling-book, "All About TPUs").
_DEFAULTS: dict[str, Table] = {
    "cpu": {"link_latency": 20e-6, "scale_out_latency": 20e-6, "host_link_bandwidth": 5e9},
    "gpu": {
        "link_latency": 2e-6,
        "scale_out_latency": 8e-6,
        "link_floor": 42e-6,
        "scale_out_floor": 300e-6,
        "host_link_bandwidth": 25e9,
    },
    "tpu": {"link_latency": 1e-6, "scale_out_latency": 25e-6, "host_link_bandwidth": 15e9},
}


@dataclass(frozen=True)
class Hardware(OneLine):
    """One kind of device: memory, speeds, links, and the properties that its compiler needs.

    Attributes:
        key: its name in targets, such as `h100`.
        kind: `cpu` (simulated devices), `gpu` or `tpu`.
        name: the device's full name.
        family: the chips that reach the same share of their data sheet; empty for what all of its kind reach.
        memory_bytes: memory of one device.
        memory_bandwidth: bytes/s of that memory.
        peak_flops: dense FLOP/s by dtype (float32, tf32, bfloat16, float16, float8, int8, ...).
        devices_per_host: devices of one host; None where that is not fixed (cpu).
        intra_host_link_bandwidth: bytes/s of one device, one direction, inside a host; on TPU over the torus.
        scale_out_bandwidth: bytes/s of one device between hosts; on TPU between slices.
        link_latency: seconds per step of a collective inside a host, besides moving bytes. Unless the file sets it,
            2e-6 for gpu, 1e-6 for tpu, 20e-6 for cpu.
        scale_out_latency: the same between hosts (TPU: slices): 8e-6 for gpu, 25e-6 for tpu, 20e-6 for cpu.
        link_floor: seconds of the shortest collective inside a host: 42e-6 for gpu, else 0.
        scale_out_floor: the same between hosts: 300e-6 for gpu, else 0.
        host_link_bandwidth: bytes/s between a device and its host's memory, one direction.
        switch_reduces_from: the number of devices of a host from which its switches compute the sums of an all-reduce
            (NVLink SHARP); None if they do not.
        links_by_pair: whether each pair of devices of a host has links of its own, instead of a switch.
        devices_per_chip: devices that share the links of one chip of a TPU's torus.
        device_kinds: JAX's names for such a device (`jax.Device.device_kind`).
        clock_share: what a limit on clock or power leaves of the speed at which products reach their peak.
        price_per_hour: what a device costs an hour, such as `2.5 USD`; empty if the user's file does not say.
        torus_dims: dims of a TPU's torus; None for other kinds.
        compiler: further properties that the compiler needs: core counts, caches, or the name of the topology; empty if
            there is no compiler for it, so that programs can be priced but not compiled for it.
        source: `built in`, or the user's file that defines or changes it.
        measured: further numbers that `outlay calibrate` measured; None if it did not.
        file: the name of its file that a target uses in place of the key, such as `my_cpu.toml`; empty for all else.
    """

    key: str
    kind: HardwareKind
    name: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float] = field(hash=False)
    devices_per_host: int | None
    intra_host_link_bandwidth: float
    scale_out_bandwidth: float
    link_latency: float
    scale_out_latency: float
    host_link_bandwidth: float
    device_kinds: tuple[str, ...]
    link_floor: float = 0.0
    scale_out_floor: float = 0.0
    switch_reduces_from: int | None = None
    links_by_pair: bool = False
    devices_per_chip: int = 1
    family: str = ""
    clock_share: float = 1.0
    price_per_hour: str = ""
    torus_dims: int | None = None
    compiler: Mapping[str, Any] = field(default_factory=dict, hash=False)
    source: str = BUILT_IN
    measured: Measured | None = None
    file: str = ""


def known_hardware(*, calibrated: bool = True) -> dict[str, Hardware]:
    """Return all hardware by key: built in, overlaid by what was measured here, then by the user's file.

    Args:
        calibrated: whether what `outlay calibrate` measured counts.

    >>> known_hardware()["h100"].devices_per_host
    8

    Raises:
        TargetError: the user's file cannot be read or holds impossible values; the message lists every problem.
    """
    files = _files(calibrated=calibrated)
    if not files:
        return dict(_built_in())
    tables, sources = _tables(files)
    return {key: hardware_of(key, table, sources.get(key, BUILT_IN)) for key, table in tables.items()}


def hardware_in(name: str) -> Hardware:
    """Read the one table of a hardware file, as `outlay profile --calibrate` writes it.

    It starts from what is built in, or from the user's file, as a table of that one does.

    Args:
        name: the file, as a target names it.

    Raises:
        TargetError: the file cannot be read, says what cannot be, or holds no table or several.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise TargetError(f"{name}: there is no such file\n  fix: outlay profile RECIPE --calibrate {name} writes one")
    changed = read_tables(path)
    if len(changed) != 1:
        listed = f": {', '.join(changed)}" if changed else ""
        raise TargetError(
            f"{name} holds {counted(len(changed), 'table')}{listed}; a target names a file of one"
            f"\n  fix: {USER_FILE}={name}, and targets by the names of its tables"
        )
    (key,) = changed
    tables = overlay(_tables(_files(calibrated=False))[0], changed, path)
    return replace(hardware_of(key, tables[key], name), file=name)


def _files(*, calibrated: bool) -> list[Path]:
    """List the existing files that change the built-in hardware."""
    path = user_file()
    if os.environ.get(USER_FILE) and not path.is_file():
        raise TargetError(f"{USER_FILE}={path}: there is no such file\n  fix: correct or unset {USER_FILE}")
    return [file for file in ((calibrated_file(),) if calibrated else ()) + (path,) if file.is_file()]


def _tables(files: Iterable[Path]) -> tuple[dict[str, Table], dict[str, str]]:
    """Return the built-in tables with the changes of files, and which file changed each."""
    tables, sources = _built_in_tables(), {}
    for file in files:
        changed = read_tables(file)
        tables = overlay(tables, changed, file)
        sources |= dict.fromkeys(changed, str(file))
    return tables, sources


def user_file() -> Path:
    """Return the path of the user's file of targets: `$OUTLAY_TARGETS`, else `~/.config/outlay/targets.toml`."""
    named = os.environ.get(USER_FILE)
    return Path(named).expanduser() if named else Path.home() / ".config" / "outlay" / "targets.toml"


def calibrated_file() -> Path:
    """Return the path of what `outlay calibrate` measured: beside the user's file, which overrides it."""
    return user_file().with_name("calibrated.toml")


def hardware_of(key: str, table: Table, source: str) -> Hardware:
    """Build hardware from a table without problems."""
    table = _DEFAULTS[table["kind"]] | table
    per_host, reduces_from = table.get("devices_per_host"), table.get("switch_reduces_from")
    return Hardware(
        key=key,
        kind=table["kind"],
        name=table["name"],
        memory_bytes=int(table["memory_bytes"]),
        memory_bandwidth=float(table["memory_bandwidth"]),
        peak_flops=dict(table["peak_flops"]),
        intra_host_link_bandwidth=float(table["intra_host_link_bandwidth"]),
        scale_out_bandwidth=float(table["scale_out_bandwidth"]),
        device_kinds=tuple(table.get("device_kinds", [table["name"]])),
        compiler={k: table[k] for k in COMPILER_KEYS if k in table},
        devices_per_host=None if per_host is None else int(per_host),
        torus_dims=table.get("torus_dims"),
        source=source,
        measured=Measured.from_table(table["measured"]) if "measured" in table else None,
        link_latency=float(table["link_latency"]),
        scale_out_latency=float(table["scale_out_latency"]),
        link_floor=float(table.get("link_floor", 0)),
        scale_out_floor=float(table.get("scale_out_floor", 0)),
        host_link_bandwidth=float(table["host_link_bandwidth"]),
        switch_reduces_from=None if reduces_from is None else int(reduces_from),
        links_by_pair=table.get("links_by_pair", False),
        devices_per_chip=int(table.get("devices_per_chip", 1)),
        family=table.get("family", ""),
        clock_share=_clock_share(table),
        price_per_hour=table.get("price_per_hour", ""),
    )


def _clock_share(table: Table) -> float:
    """Return what limits leave of the clock: power goes with its cube, since the voltage rises with it.

    Best products of chips sold with two limits (stas00/ml-engineering, "Maximum Achievable Matmul FLOPS"): A100 of 300
    and 400 W 252.9 and 271.2 TFLOP/s, MI300X of 750 and MI325X of 1000 W 668.4 and 784.9, Hopper of 700 and 900 W
    794.5 and 828.6. The exponents that these say are .24, .56 and .17, together .33.
    """
    if "measured" in table:  # under whatever limit there was
        return 1.0
    of_power = (table["watts"] / table["rated_watts"]) ** (1 / 3) if "watts" in table else 1.0
    return table.get("peak_share", 1) * of_power


@functools.cache
def _built_in() -> dict[str, Hardware]:
    return {key: hardware_of(key, table, BUILT_IN) for key, table in _built_in_tables().items()}


@functools.cache
def _built_in_tables() -> dict[str, Table]:
    # Read as they are: that they make sense is a test's to see, while a user's file is checked.
    written = tomllib.loads(resources.files("outlay.devices").joinpath("targets.toml").read_text(encoding="utf-8"))
    return {key: _in_full(written, key) for key in written}


def _in_full(written: Mapping[str, Table], key: str) -> Table:
    """Return a built-in table with what it takes from the one that it is like; its own keys come first."""
    own = dict(written[key])
    like = own.pop("like", None)
    if like is None:
        return own
    below, flops = _in_full(written, like), own.get("peak_flops", {})
    return {**own, **below, **own, "peak_flops": {**flops, **below["peak_flops"], **flops}}
