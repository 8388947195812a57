"""A stand-in for a module that could not be read, so that the rest of its file can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from outlay.brain.module import Module
from outlay.brain.port import Port


@dataclass(frozen=True)
class Unread(Module):
    """A module whose settings have mistakes, which are told elsewhere.

    Attributes:
        ports: those that the file connects something to.
    """

    ports: tuple[str, ...]

    def inputs(self) -> Mapping[str, Port]:
        """It reads whatever the file connects to it."""
        return {port: Port("values") for port in self.ports}

    def outputs(self, shapes: Any) -> NoReturn:
        """Not asked: it has problems."""
        raise NotImplementedError

    def init(self, key: Any, shapes: Any, *, dt: float, dtype: Any) -> NoReturn:
        """No Brain can be built with it."""
        raise NotImplementedError

    def step(self, state: Any, inputs: Any, *, dt: float) -> NoReturn:
        """No Brain can be built with it."""
        raise NotImplementedError

    def problems(self, *, dt: float) -> list[str]:
        """That it was not read."""
        return ["its settings have mistakes"]
