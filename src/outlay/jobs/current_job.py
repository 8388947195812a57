"""The job that this process has joined: who is in it, and the texts that its processes leave for each other."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outlay.core.one_line import OneLine

PATIENCE = 300.0
"""Seconds that processes wait for each other unless told otherwise; the nodes of a cluster do not start together."""


@dataclass(frozen=True)
class Joined(OneLine):
    """A process that has joined its job.

    Attributes:
        process: which process this is, from 0.
        num_processes: how many there are.
        coordinator: `host:port` where they met; empty for a process that is alone.
        hosts: the name of the host of each process.
        restart: how often the job was started again before.
        origin: where process, number and coordinator came from, such as the name of a variable.
        timeout: seconds that processes wait for each other where they should come at the same time.
    """

    process: int = 0
    num_processes: int = 1
    coordinator: str = ""
    hosts: tuple[str, ...] = ()
    restart: int = 0
    origin: dict[str, str] = field(default_factory=dict)
    timeout: float = PATIENCE


_joined: Joined | None = None


def joined() -> Joined | None:
    """Return the job of this process; None before `outlay.join()`."""
    return _joined


def remember(joined: Joined) -> None:
    """Set the job of this process, for `joined()`."""
    global _joined
    _joined = joined


def host_number(process: int) -> int | None:
    """Return the number of the host of a process, from 0 in the order of processes; None where hosts are unknown."""
    if _joined is None or process >= len(_joined.hosts):
        return None
    return sorted(set(_joined.hosts), key=_joined.hosts.index).index(_joined.hosts[process])


_AT_ONCE = 2.0  # seconds in JAX's native code, where Python does not hear of Ctrl-C
_FAREWELL = 10.0  # seconds


def patience() -> float:
    """Return the seconds that this process waits for the others of its job."""
    job = joined()
    return job.timeout if job else PATIENCE


def post(key: str, text: str) -> None:
    """Put a text into the job's key-value store, at the coordinator; a key can be used once."""
    _client().key_value_set(f"outlay/{key}", text)


def posted(folder: str) -> list[str]:
    """Return the texts under all keys that begin with this one and a slash."""
    return [text for _, text in _client().key_value_dir_get(f"outlay/{folder}/")]


def wait_for(key: str, seconds: float = math.inf) -> str | None:
    """Return the text under a key once a process has put it there; None if none has in time.

    Without a limit, it is `PeerWatch` that ends the wait for a process that has failed or gone.
    """
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


def texts_in_time(folder: str, processes: Sequence[int], seconds: float) -> dict[int, str]:
    """Return the texts that processes put under a folder, by process; late processes are left out.

    Args:
        folder: the folder.
        processes: the processes to wait for.
        seconds: how long to wait for all of them.
    """
    deadline, texts = time.monotonic() + seconds, {}
    for process in processes:
        text = wait_for(f"{folder}/{process}", deadline - time.monotonic())
        if text is None:  # no time is left for the next ones, whose texts may be there
            stored = dict(_client().key_value_dir_get(f"outlay/{folder}/"))
            keys = {other: f"outlay/{folder}/{other}" for other in processes}
            return {other: stored[key] for other, key in keys.items() if key in stored}
        texts[process] = text
    return texts


def gather_all(key: str, processes: Sequence[int], process: int, seconds: float = math.inf) -> list[int]:
    """Wait until all of some processes have called this: a barrier without devices, which may take any time.

    Args:
        key: the key of this barrier, the same in all; can be used once.
        processes: all that take part, in the same order everywhere.
        process: which of them this is.
        seconds: how long to wait.

    Returns:
        The processes that have not come; empty if all have.
    """
    first, *others = processes
    if process != first:
        post(f"{key}/{process}", "")
        return [] if wait_for(f"{key}/all", seconds) is not None else [first]
    arrived = texts_in_time(key, others, seconds)
    missing = [other for other in others if other not in arrived]
    if not missing:
        post(f"{key}/all", "")
    return missing


def part(key: str, processes: Sequence[int]) -> None:
    """Wait for the others to read what was posted, before this process ends and perhaps takes the coordinator along."""
    import jax

    try:
        _client().wait_at_barrier(f"outlay/{key}", round(1000 * _FAREWELL), list(processes))
    except jax.errors.JaxRuntimeError:  # one has ended already; the message that follows matters more
        return


def _client() -> Any:
    from outlay.core.jax_compat import coordination_client

    return coordination_client()
