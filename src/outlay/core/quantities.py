"""How every message, table and page writes counts, bytes, seconds and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence


def counted(num: int, one: str, many: str | None = None) -> str:
    """A number of things, with the word for one of them or for several (by default, one with an s).

    >>> counted(1, "leaf", "leaves"), counted(20_000, "leaf", "leaves"), counted(0, "problem")
    ('1 leaf', '20,000 leaves', '0 problems')
    """
    return f"{num:,} {one if num == 1 else many or one + 's'}"


def listed(items: Sequence[object], most: int = 3) -> str:
    """Items with commas; from `most` on they are only counted.

    >>> listed(["a", "b"]), listed("abcde")
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def how_often(runs: int) -> str:
    """A number of times in words.

    >>> how_often(1), how_often(2), how_often(4800)
    ('once', 'twice', '4,800 times')
    """
    return {1: "once", 2: "twice"}.get(runs, f"{runs:,} times")


def format_bytes(count: float) -> str:
    """Bytes for people, in binary units.

    >>> format_bytes(512), format_bytes(1628200), format_bytes(-3 * 2**30), format_bytes(0.25)
    ('512 B', '1.6 MiB', '-3.0 GiB', '0.25 B')
    """
    size = float(abs(count))
    if 0 < size < 1:  # an average, such as of what is sent in one of several steps
        return f"{count:.2f} B"
    sign = "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        digits = 0 if unit == "B" else 1
        if round(size, digits) < 1024 or unit == "TiB":
            return f"{sign}{size:.{digits}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """A time for people.

    >>> format_seconds(0), format_seconds(3.21e-5), format_seconds(0.0125), format_seconds(83.0)
    ('0 s', '32.1 µs', '12.5 ms', '83 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size or (unit == "µs" and seconds):
            return f"{seconds / size:.3g} {unit}"
    return "0 s"


def format_range(low: float, high: float) -> str:
    """A range of times for people.

    >>> format_range(0.012, 0.031), format_range(0.5e-3, 0.012), format_range(0.002, 0.002)
    ('12 to 31 ms', '500 µs to 12 ms', '2 ms')
    """
    first, last = format_seconds(low), format_seconds(high)
    if first == last:
        return first
    (number, unit), (_, other) = first.split(), last.split()
    return f"{number} to {last}" if unit == other else f"{first} to {last}"


def format_flops(count: float) -> str:
    """Floating-point operations for people.

    >>> format_flops(738e6), format_flops(2.5e15)
    ('738 MFLOP', '2.5 PFLOP')
    """
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 999.5 or unit == "P":
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    raise AssertionError("unreachable")
