"""What the places of a program send one another in a step, and how what they read is cached."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.core.paths import join_parts
from outlay.core.sizes import num_bytes
from outlay.core.step_graph import CACHE
from outlay.execute.placed.dispatch import routes
from outlay.execute.placed.place import Place
from outlay.execute.placed.program import PlacedProgram
from outlay.meshes.device_id import device_id
from outlay.meshes.target import Target
from outlay.report.estimate.links import collective_seconds, payload_bytes
from outlay.report.hlo.collectives import collectives_of
from outlay.report.hlo.parse import parse_hlo
from outlay.report.placed.facts import CachedFacts, SentFacts


def sent_by(program: PlacedProgram, target: Target | None) -> tuple[SentFacts, ...]:
    """Everything that leaves a device, most bytes first."""
    found = [*_between(program, target), *_within(program, target)]
    return tuple(sorted(found, key=lambda one: -one.bytes_in_all))


def cached_by(program: PlacedProgram, sent: tuple[SentFacts, ...]) -> tuple[CachedFacts, ...]:
    """The exchange cache by path."""

    def others(path: str) -> tuple[int, ...]:
        copies = [one.target for one in sent if not one.is_within and join_parts((CACHE, one.part, one.port)) == path]
        return tuple(sorted({device for ids in copies for device in ids}))

    return tuple(
        CachedFacts(leaf.path, leaf.shape, leaf.dtype, leaf.bytes_total, leaf.device_ids, others(leaf.path))
        for leaf in program.plan.state
        if leaf.path.startswith(f"{CACHE}.")
    )


def _between(program: PlacedProgram, target: Target | None) -> Iterator[SentFacts]:
    graph, places = program.step.graph, program.places
    seen = {(route.origin, route.target, route.part, route.port) for route in routes(places)}
    for origin, to, part, port in sorted(seen):
        leaf = program.state_shapes[CACHE][part][port]
        readers = [
            name
            for name in places[to].names
            if any((s.part, s.port) == (part, port) for of in graph.parts[name].reads.values() for s in of)
        ]
        # A dispatch sends the cache once, whatever number of steps it runs.
        size = num_bytes(leaf.shape, leaf.dtype) / program.num_steps_at_once
        pair = [_positions(program, places[number])[0] for number in (origin, to)]
        yield SentFacts(
            part,
            port,
            _ids(places[origin]),
            _ids(places[to]),
            tuple(readers),
            size,
            collective_seconds("collective-permute", size, [pair], target) if target else None,
        )


def _within(program: PlacedProgram, target: Target | None) -> Iterator[SentFacts]:
    """Rows that the devices of one place exchange, which only its compiled program knows."""
    for place, compiled in zip(program.places, program.compiled.values(), strict=True) if program.rows else ():
        if place.rows is None:
            continue
        positions = _positions(program, place)
        size, seconds = 0.0, 0.0
        for one in collectives_of(parse_hlo(compiled.as_text() or "")):
            size += (payload_bytes(one) - one.operand_bytes) * one.count / program.num_steps_at_once
            if target:
                spent = collective_seconds(one.kind, payload_bytes(one), [positions], target)
                seconds += spent * one.count / program.num_steps_at_once
        names = tuple(place.rows.num)
        yield SentFacts("+".join(names), "rows", _ids(place), _ids(place), names, size, seconds if target else None)


def _ids(place: Place) -> tuple[int, ...]:
    return tuple(device_id(device) for device in place.devices)


def _positions(program: PlacedProgram, place: Place) -> list[int]:
    devices = list(program.mesh.devices.flat)
    return [devices.index(device) for device in place.devices]
