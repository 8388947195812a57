"""Write counts, bytes, seconds and FLOPs in the same way in every message, table and page."""

from __future__ import annotations

from collections.abc import Sequence


def counted(num: int, one: str, many: str | None = None) -> str:
    """Write a number of things with the singular or the plural of their name (by default with an s).

    >>> counted(1, "leaf", "leaves"), counted(20_000, "leaf", "leaves"), counted(0, "problem")
    ('1 leaf', '20,000 leaves', '0 problems')
    """
    return f"{num:,} {plural(num, one, many)}"


def plural(num: float, one: str, many: str | None = None) -> str:
    """Return the singular or the plural (by default with an s) of a name for a number of things.

    >>> plural(1, "process", "processes"), plural(2, "device")
    ('process', 'devices')
    """
    return one if num == 1 else many or f"{one}s"


def listed(items: Sequence[object], most: int = 3) -> str:
    """Join items with commas; count those after the first `most`.

    >>> listed(["a", "b"]), listed("abcde")
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def how_often(runs: int) -> str:
    """Write a number of repetitions.

    >>> how_often(1), how_often(2), how_often(4800)
    ('once', 'twice', '4,800 times')
    """
    return {1: "once", 2: "twice"}.get(runs, f"{runs:,} times")


def format_bytes(count: float) -> str:
    """Write a number of bytes in binary units.

    >>> format_bytes(512), format_bytes(1628200), format_bytes(-3 * 2**30), format_bytes(0.25)
    ('512 B', '1.6 MiB', '-3.0 GiB', '0.25 B')
    """
    size = float(abs(count))
    if 0 < size < 1:  # an average, such as the bytes per step of a transfer that happens every few steps
        return f"{count:.2f} B"
    sign = "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        digits = 0 if unit == "B" else 1
        if round(size, digits) < 1024 or unit == "TiB":
            return f"{sign}{size:.{digits}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Write a time with its unit.

    >>> format_seconds(0), format_seconds(3.21e-5), format_seconds(0.0125), format_seconds(83.0)
    ('0 s', '32.1 µs', '12.5 ms', '83 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size or (unit == "µs" and seconds):
            return f"{seconds / size:.3g} {unit}"
    return "0 s"


def format_range(low: float, high: float) -> str:
    """Write a range of times, the unit once if both have the same.

    >>> format_range(0.012, 0.031), format_range(0.5e-3, 0.012), format_range(0.002, 0.002)
    ('12 to 31 ms', '500 µs to 12 ms', '2 ms')
    """
    first, last = format_seconds(low), format_seconds(high)
    if first == last:
        return first
    (number, unit), (_, other) = first.split(), last.split()
    return f"{number} to {last}" if unit == other else f"{first} to {last}"


def format_flops(count: float) -> str:
    """Write a number of floating-point operations.

    >>> format_flops(738e6), format_flops(2.5e15)
    ('738 MFLOP', '2.5 PFLOP')
    """
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 999.5 or unit == "P":
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    raise AssertionError("unreachable")
