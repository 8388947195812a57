"""The table of who is who, once all processes have joined."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from outlay.core.table import table, to_text
from outlay.launch.job_folder import Who

_WIDTH = 160


def who_table(everyone: Sequence[Who]) -> str:
    """One row a process; below, where each value came from, said once for processes that agree."""
    rows = [[str(who.process), who.host, str(who.pid), _devices(who), who.coordinator] for who in everyone]
    columns = ("process", "host", "pid", "devices", "coordinator")
    lines = [to_text(table(columns, rows, right=("process", "pid")), width=_WIDTH)]
    by_origin: dict[str, list[int]] = collections.defaultdict(list)
    for who in everyone:
        by_origin[", ".join(f"{what} from {where}" for what, where in who.origin.items())].append(who.process)
    for origin, processes in by_origin.items():
        of = "" if len(by_origin) == 1 else f" (process {', '.join(map(str, processes))})"
        lines.append(f"{origin}{of}")
    return "\n".join(lines)


def _devices(who: Who) -> str:
    kinds = collections.Counter(device["kind"] for device in who.devices)
    ids = ",".join(str(device["id"]) for device in who.devices[:8])
    more = f",... ({len(who.devices)})" if len(who.devices) > 8 else ""
    return " ".join(f"{num} x {kind}" for kind, num in kinds.items()) + f" (ids {ids}{more})"
