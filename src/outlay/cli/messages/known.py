"""Every message that is known."""

from __future__ import annotations

from outlay.cli.messages.explicit_messages import EXPLICIT
from outlay.cli.messages.memory_messages import MEMORY
from outlay.cli.messages.placement_messages import PLACEMENT
from outlay.cli.messages.process_messages import PROCESSES
from outlay.cli.messages.shard_map_messages import BY_HAND
from outlay.cli.messages.split_messages import SPLITS
from outlay.cli.messages.start_messages import START
from outlay.cli.messages.value_messages import VALUES

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
