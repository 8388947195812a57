"""A TCP port for the coordinator on this machine."""

from __future__ import annotations

import socket

from outlay.core.errors import LaunchError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


def check_port(port: int) -> None:
    """Refuse a port that the user chose and cannot have.

    Raises:
        LaunchError: it is in use, or may not be used.
    """
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((LOOPBACK, port))
        except OSError as error:
            raise LaunchError(
                f"port {port} cannot be used for the coordinator: {error.strerror}\n"
                f"  cure: leave out --port, and a free one is chosen (such as {free_port()} now)"
            ) from error
