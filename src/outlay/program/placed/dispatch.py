"""The loop that sends the steps of all places off, and what they read of each other between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.core.jax_compat import copy_to
from outlay.graph.step_graph import CACHE
from outlay.program.placed.place import Place


@dataclass(frozen=True)
class Route:
    """What is sent after each dispatch from one place to one device.

    Attributes:
        part, port: what it is.
        origin, target: the numbers of the places.
        device: where to.
    """

    part: str
    port: str
    origin: int
    target: int
    device: jax.Device


def routes(places: Sequence[Place]) -> list[Route]:
    """Everything that is sent: only what is read elsewhere, and only to where it is read."""
    home = {name: number for number, place in enumerate(places) for name in place.names}
    return [
        Route(part, port, home[part], target, device)
        for target, place in enumerate(places)
        for part, port in place.foreign
        for device in place.devices
    ]


class Dispatch:
    """Runs the steps of all places; nothing is waited for, so they run as far ahead as what they read allows.

    Args:
        places: the places.
        programs: for each number of dispatches in a row, the program of each place.
    """

    def __init__(self, places: Sequence[Place], programs: Sequence[tuple[int, Sequence[Any]]]) -> None:
        self.places = places
        self.programs = programs
        self.routes = routes(places)
        self._devices = [route.device for route in self.routes]
        self._is_simple = all(len(place.devices) == 1 for place in places)

    def __call__(self, own: list[Any], rest: list[Any], caches: list[Any], inputs: Sequence[Any]) -> None:
        """All steps; state, what is kept and caches are replaced in their lists."""
        numbers = range(len(self.places))
        foreign: list[dict[str, dict[str, Any]]] = [{part: {} for part, _ in place.foreign} for place in self.places]
        slots = [(foreign[route.target][route.part], route.port) for route in self.routes]
        sources = [(route.origin, route.part, route.port) for route in self.routes]
        for num, programs in self.programs:
            for _ in range(num):
                if self._is_simple:
                    sent = copy_to([caches[origin][part][port] for origin, part, port in sources], self._devices)
                    for (slot, port), array in zip(slots, sent, strict=True):
                        slot[port] = array
                else:
                    self._send(caches, foreign)
                for i in numbers:
                    own[i], rest[i], caches[i] = programs[i](own[i], rest[i], caches[i], foreign[i], inputs[i])

    def _send(self, caches: list[Any], foreign: list[dict[str, dict[str, Any]]]) -> None:
        """The same where some place has several devices, which all hold what they send, and all get what is sent."""
        values = [caches[route.origin][route.part][route.port].addressable_data(0) for route in self.routes]
        pieces: dict[tuple[int, str, str], list[jax.Array]] = {}
        for route, array in zip(self.routes, copy_to(values, self._devices), strict=True):
            pieces.setdefault((route.target, route.part, route.port), []).append(array)
        for (target, part, port), arrays in pieces.items():
            place = self.places[target]
            whole = arrays[0].shape
            foreign[target][part][port] = (
                arrays[0] if len(arrays) == 1 else jax.make_array_from_single_device_arrays(whole, place.whole, arrays)
            )


def split_state(state: Any, places: Sequence[Place]) -> tuple[list[Any], list[Any]]:
    """A state as each place's own and each place's cache."""
    own = [{name: state[name] for name in place.names} for place in places]
    return own, [{name: state[CACHE][name] for name in place.names} for place in places]


def joined(own: Sequence[Any], caches: Sequence[Any]) -> Any:
    """The inverse of `split_state`."""
    parts = {name: part for one in own for name, part in one.items()}
    return {**parts, CACHE: {name: ports for cache in caches for name, ports in cache.items()}}
