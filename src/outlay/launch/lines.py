"""Bytes from a pipe, cut into whole lines."""

from __future__ import annotations

import re

LONGEST = 1 << 20
"""Bytes of a line that are held until its end comes; a longer one is shown in pieces."""

_ENDS = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)


class Lines:
    """Collects what comes from a pipe and gives back the lines that are whole."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> list[str]:
        """Add what came; returns the lines that are whole now, without their ends.

        A carriage return ends a line too: progress bars write one instead of a newline.
        """
        begins_an_end = bool(self._begun) and self._begun[-1].endswith(b"\r")
        if not begins_an_end and b"\n" not in piece and b"\r" not in piece:  # what came before is not looked at again
            return self._begin(piece)
        *parts, rest = _ENDS.split(b"".join(self._begun) + piece)
        self._begun, self._size = [], 0
        pairs = zip(parts[::2], parts[1::2], strict=True)
        whole = [line.decode(errors="replace") for line, end in pairs if line or end != b"\r"]
        return whole + self._begin(rest)

    def finish(self) -> list[str]:
        """What is left when the pipe has closed."""
        rest, self._begun, self._size = b"".join(self._begun), [], 0
        return [rest.decode(errors="replace").rstrip("\r")] if rest else []

    def _begin(self, piece: bytes) -> list[str]:
        if piece:
            self._begun.append(piece)
            self._size += len(piece)
        return self.finish() if self._size >= LONGEST else []
