"""Which failures and lines are only the echo of another process's failure."""

from __future__ import annotations

import re

_ECHOES = re.compile(
    "|".join(
        (
            r"Connection (closed|reset) by peer",
            r"Connection refused",
            r"Gloo [\w-]+ failed",
            r"Gloo context initialization failed",
            r"Socket closed",
            r"Broken pipe",
            r"coordination (service|agent)",
            r"CoordinationService",
            r"JAX distributed service detected fatal errors",
            r"another task died",
            r"stopped sending heartbeats",
            r"[Ss]hutdown barrier",
            r"NCCL.*(remote|abort)",
        )
    ),
    re.IGNORECASE,
)


def is_echo(text: str) -> bool:
    """Whether a message says no more than that another process has gone.

    >>> is_echo("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:5000")
    True
    """
    return _ECHOES.search(text) is not None
