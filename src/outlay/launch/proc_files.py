"""What Linux says about a process; on other systems nothing."""

from __future__ import annotations

from pathlib import Path

_RUNNING = {"R", "D"}  # on a core or waiting for one; waiting for a disk


def is_idle(pid: int) -> bool:
    """Whether every thread of a process waits for something other than a core or a disk; False where unknown."""
    states = [_state(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and not _RUNNING & set(states)


def waits_for_a_thread(pid: int) -> bool:
    """Whether the main thread of a process waits for another thread, not for time to pass, a file or the network."""
    try:
        return "futex" in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP holds a process."""
    return _state(Path(f"/proc/{pid}/stat")) == "T"


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
