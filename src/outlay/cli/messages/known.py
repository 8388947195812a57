"""Every message that is known."""

from __future__ import annotations

from outlay.cli.messages.by_hand import BY_HAND
from outlay.cli.messages.explicit import EXPLICIT
from outlay.cli.messages.memory import MEMORY
from outlay.cli.messages.placement import PLACEMENT
from outlay.cli.messages.processes import PROCESSES
from outlay.cli.messages.splits import SPLITS
from outlay.cli.messages.start import START
from outlay.cli.messages.values import VALUES

BY_THEME = {
    "splitting an array": SPLITS,
    "devices and meshes": PLACEMENT,
    "Explicit axes": EXPLICIT,
    "shard_map": BY_HAND,
    "memory": MEMORY,
    "values in and out": VALUES,
    "start": START,
    "processes": PROCESSES,
}

KNOWN = tuple(message for messages in BY_THEME.values() for message in messages)
