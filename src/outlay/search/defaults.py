"""How much a search spends unless told otherwise. Nothing here imports JAX: the command line reads it for its help."""

from __future__ import annotations

import os

NUM_CANDIDATES = 12
TIMEOUT = 300.0
"""Seconds that pricing one candidate may take."""

_BYTES_EACH = 4 * 2**30  # what tracing and compiling a large step takes at most, by experience
_MOST = 4


def default_processes() -> int:
    """As many processes as there are cores and memory for, and at most 4."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(_MOST, num_cores(), memory // _BYTES_EACH))


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
