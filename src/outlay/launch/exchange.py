"""Short texts that the processes of a job leave for each other at the coordinator; no device takes part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from outlay.launch.joined import PATIENCE, joined

_AT_ONCE = 2.0  # seconds in JAX's own code without a look at Ctrl-C
_FAREWELL = 10.0  # seconds


def patience() -> float:
    """Seconds that this process waits for the others of its job."""
    job = joined()
    return job.timeout if job else PATIENCE


def post(key: str, text: str) -> None:
    """Leave a text; a key can be used once."""
    _client().key_value_set(f"outlay/{key}", text)


def is_posted(folder: str) -> bool:
    """Whether any key that begins with this one and a slash has been posted."""
    return bool(_client().key_value_dir_get(f"outlay/{folder}/"))


def wait_for(key: str, seconds: float) -> str | None:
    """The text that a process leaves; None where it has not come after so many seconds."""
    import jax

    deadline = time.monotonic() + seconds
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            # In JAX's own code, where the launcher can see that this process waits for others that have ended.
            return _client().blocking_key_value_get(f"outlay/{key}", max(1, round(1000 * min(left, _AT_ONCE))))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if left <= _AT_ONCE:
            return None


def part(key: str, processes: Sequence[int]) -> None:
    """Let all read what was left before the first of them ends, and perhaps the coordinator with it."""
    import jax

    try:
        _client().wait_at_barrier(f"outlay/{key}", round(1000 * _FAREWELL), list(processes))
    except jax.errors.JaxRuntimeError:  # one of them has ended already; what is to be said matters more
        return


def _client() -> Any:
    from outlay.core.jax_compat import coordination_client

    return coordination_client()
