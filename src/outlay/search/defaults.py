"""How much a search spends by default. Nothing here imports JAX: the command line reads it for its help."""

from __future__ import annotations

import os

from outlay.core.runtime_flags import num_cores

NUM_CANDIDATES = 12
TIMEOUT = 300.0
"""Seconds that pricing one candidate may take."""

_BYTES_EACH = 4 * 2**30  # the most that tracing and compiling a large step takes, by experience
_MOST = 4


def default_processes() -> int:
    """Return as many processes as there are cores and memory for, at most 4."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(_MOST, num_cores(), memory // _BYTES_EACH))
