"""Bytes from a pipe, cut into whole lines."""

from __future__ import annotations

import re

_ENDS = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)


class Lines:
    """Collects what comes from a pipe and gives back the lines that are whole."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> list[str]:
        """Add what came; returns the lines that are whole now, without their ends.

        A carriage return ends a line too: progress bars write one instead of a newline.
        """
        *parts, self._rest = _ENDS.split(self._rest + piece)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [line.decode(errors="replace") for line, end in pairs if line or end != b"\r"]

    def finish(self) -> list[str]:
        """What is left when the pipe has closed."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace").rstrip("\r")] if rest else []
