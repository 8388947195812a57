"""How many processes this machine can run at once: each needs a port for its peers, and two pipes to the launcher."""

from __future__ import annotations

import resource
from pathlib import Path

from outlay.core.errors import LaunchError

_PIPES = 2
_OWN_FILES = 64  # what the launcher has open besides
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_limits(num_processes: int, ports: Path = _PORTS) -> None:
    """Refuse more processes than can be started; lets the launcher open as many files as the system allows it.

    Args:
        num_processes: how many.
        ports: the file with the first and the last port that the system hands out.

    Raises:
        LaunchError: there are too few ports or open files for them.
    """
    num_ports = _num_ports(ports)
    if num_processes > num_ports:
        raise LaunchError(
            f"{num_processes} processes need a port each, and this machine hands out {num_ports} ({ports})"
            f"\n  cure: {num_ports} processes at most, and fewer where other programs need ports too"
        )
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _PIPES * num_processes + _OWN_FILES
    if most != resource.RLIM_INFINITY and needed > most:
        fit = max((most - _OWN_FILES) // _PIPES, 1)
        raise LaunchError(
            f"{num_processes} processes need {needed} open files in the launcher, and {most} are allowed"
            f"\n  cure: {fit} processes at most, or a higher limit: ulimit -Hn {needed}"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _num_ports(file: Path) -> int:
    """Ports that the system hands out; where it does not say, all that are not reserved."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):
        first, last = 1024, 65535
    return last - first + 1
