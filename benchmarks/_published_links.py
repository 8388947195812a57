"""Published collectives, products and copies beside what a target says of them."""

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from outlay.analysis.cost.constants import constants_of
from outlay.analysis.cost.links import NETWORK_SHARE, collective_seconds
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.core.input_file import read_text
from outlay.core.suggest import did_you_mean
from outlay.devices.hardware import known_hardware
from outlay.devices.target import Target
from outlay.errors import OutlayError

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
    try:
        reader = csv.DictReader(io.StringIO(read_text(path)), restval="")
        numbered = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise SystemExit(f"{path} cannot be read as a file of links: {error}") from error
    if lacking := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise SystemExit(f"{path} is not a file of links: it lacks the columns {', '.join(lacking)}")
    priced, problems = [], {}
    for line, row in numbered:
        try:
            priced.append(_link(row))
        except (OutlayError, ValueError) as problem:
            problems[line] = problem
    if problems:
        raise SystemExit(
            "\n".join(
                [
                    f"{path}: {len(problems)} of its {len(numbered)} rows cannot be priced",
                    *(f"  line {line}: {problem}" for line, problem in problems.items()),
                ]
            )
        )
    return priced


def _check(row):
    """Raise an error that lists why a row cannot be priced."""
    problems = []
    if not row["outlay_target"] and not any(name in row["hardware"] for name, _ in HARDWARE):
        names = ", ".join(name for name, _ in HARDWARE)
        problems.append(f"hardware {row['hardware']!r} names none of {names}, and outlay_target is empty")
    if row["unit"] not in UNITS:
        problems.append(f"the unit {row['unit']!r}: {did_you_mean(row['unit'], UNITS)}")
    is_timed = bool(row["measured_seconds"])
    if is_timed and _kind(row) not in get_args(CollectiveKind):
        problems.append(f"the collective {_kind(row)!r}: {did_you_mean(_kind(row), get_args(CollectiveKind))}")
    counts = ("measured_seconds", "payload_bytes", "devices") if is_timed else ("measured",)
    problems += [f"{name} is {row[name]!r}, not a number above 0" for name in counts if not _is_number(row[name])]
    if problems:
        raise ValueError("; ".join(problems))


def _is_number(text):
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _kind(row):
    return row["what"].split(",")[0]


def _link(row) -> Link:
    _check(row)
    key = next((key for name, key in HARDWARE if name in row["hardware"]), "")
    named = row["outlay_target"]
    if row["measured_seconds"]:
        target = Target.parse(named or f"{key}:1x{row['devices']}")
        devices = range(int(float(row["devices"])))
        seconds = collective_seconds(_kind(row), float(row["payload_bytes"]), [devices], target)
        published, middle, unit = float(row["measured_seconds"]), seconds, "s"
    else:
        hardware = Target.parse(named).hardware if named else known_hardware()[key]
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
    raise ValueError(f"{what!r} is no product or copy that is priced, and a collective counts by its measured_seconds")


def _seconds(event, hardware):
    shape = (1,) * (hardware.torus_dims or 2)
    target = Target(hardware, shape)
    schedule = Schedule(str(target), target.num_devices, "entry", {"entry": (event,)}, (), ())
    parts = price(schedule, target).parts
    return sum(parts.values()) - constants_of(hardware).step
