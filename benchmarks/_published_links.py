"""Published collectives, products and copies beside what a target says of them."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from outlay.analysis.cost.constants import constants_of
from outlay.analysis.cost.links import NETWORK_SHARE, collective_seconds
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.core.suggest import did_you_mean
from outlay.devices.hardware import known_hardware
from outlay.devices.target import Target

LINKS = Path(__file__).parent / "data" / "published_links.csv"

GB, LARGEST = 2**30, 8192
"""What copies copy, and the rows of the best product of a sweep."""

# How the file calls hardware for which it names no target.
HARDWARE = (
    ("GH200", "gh200"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("H200", "h200"),
    ("H100", "h100"),
    ("A100", "a100-80gb"),
    ("MI300X", "mi300x"),
    ("MI325X", "mi325x"),
    ("MI355X", "mi355x"),
    ("Ironwood", "tpu-ironwood"),
    ("v6e", "tpu-v6e"),
)


ALONE = 1.25
"""The range of one operation alone, each way: a step has many, whose errors partly cancel."""

COLUMNS = (
    "id",
    "hardware",
    "outlay_target",
    "what",
    "devices",
    "payload_bytes",
    "measured",
    "unit",
    "measured_seconds",
)
UNITS = ("GB/s", "GB/s bus", "GB/s bus a chip", "TFLOP/s")
"""What a measurement may be in. That of a collective counts by its seconds."""


@dataclass(frozen=True)
class Link:
    """One measurement and its prediction, both in the unit that was printed or in seconds.

    Attributes:
        id: the row's name.
        published: what was measured.
        low: the least that is predicted.
        middle: what is expected.
        high: the most.
        unit: of all of them.
    """

    id: str
    published: float
    low: float
    middle: float
    high: float
    unit: str

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies in the range."""
        return self.low <= self.published <= self.high


def links(path: Path = LINKS) -> list[Link]:
    """Price all rows of a file.

    Raises:
        SystemExit: it is no such file, or rows of it cannot be priced; the message lists these with their lines.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        numbered = [(reader.line_num, row) for row in reader]
    if lacking := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise SystemExit(f"{path} is not a file of links: it lacks the columns {', '.join(lacking)}")
    if problems := [f"  line {line}: {problem}" for line, row in numbered for problem in _problems(row)]:
        raise SystemExit(
            "\n".join([f"{path}: {len(problems)} of its {len(numbered)} rows cannot be priced", *problems])
        )
    return [_link(row) for _, row in numbered]


def _problems(row):
    """Yield why a row cannot be priced."""
    if not any(name in row["hardware"] for name, _ in HARDWARE):
        yield f"hardware {row['hardware']!r} names none of {', '.join(name for name, _ in HARDWARE)}"
    if row["unit"] not in UNITS:
        yield f"the unit {row['unit']!r}: {did_you_mean(row['unit'], UNITS)}"
    for name in ("measured", "measured_seconds", "payload_bytes", "devices"):
        if row[name] and not _is_number(row[name]):
            yield f"{name} is {row[name]!r}, not a number"


def _is_number(text):
    try:
        return float(text) > 0
    except ValueError:
        return False


def _link(row) -> Link:
    key = next(key for name, key in HARDWARE if name in row["hardware"])
    hardware = known_hardware()[key]
    if row["measured_seconds"]:
        target = Target.parse(row["outlay_target"] or f"{key}:1x{row['devices']}")
        kind, devices = row["what"].split(",")[0], range(int(row["devices"]))
        seconds = collective_seconds(kind, float(row["payload_bytes"]), [devices], target)
        published, middle, unit = float(row["measured_seconds"]), seconds, "s"
    else:
        published, middle, unit = float(row["measured"]), _speed(row["what"], hardware), row["unit"]
    return Link(row["id"], published, middle / ALONE, middle, middle * ALONE, unit)


def _speed(what, hardware):
    """Return the predicted speed of a product in TFLOP/s, of a copy in GB/s."""
    if "matmul" in what:
        rows = int(match[1]) if (match := re.search(r"(\d+)\^3", what)) else LARGEST
        dtype = "float8" if "fp8" in what else "bfloat16"
        width = 1 if dtype == "float8" else 2
        event = Event("work", "product", flops=2 * rows**3, dtype=dtype, num_bytes=3 * width * rows**2)
        return event.flops / _seconds(event, hardware) / 1e12
    if "same device" in what:  # counted is what arrives; as much is read
        return 2 * GB / _seconds(Event("work", "copy", num_bytes=2 * GB), hardware) / 1e9
    if "host to device" in what:
        return GB / _seconds(Event("copy", "copy", 1, num_bytes=GB), hardware) / 1e9
    if "peer to peer" in what:
        return GB / collective_seconds("collective-permute", GB, [(0, 1)], Target(hardware, (1, 2))) / 1e9
    if "DCN" in what:  # of two slices of a row; what crosses is a chip's share
        return hardware.scale_out_bandwidth * NETWORK_SHARE / 1e9
    raise ValueError(f"{what!r} is not a collective, product or copy that is priced")


def _seconds(event, hardware):
    shape = (1,) * (hardware.torus_dims or 2)
    target = Target(hardware, shape)
    schedule = Schedule(str(target), target.num_devices, "entry", {"entry": (event,)}, (), ())
    parts = price(schedule, target).parts
    return sum(parts.values()) - constants_of(hardware).step
