"""The result of `outlay.profile`, which prints itself, and the events that it was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlay.analysis.attribution.collective_facts import starred
from outlay.analysis.cost.fit_speeds import FittedSpeeds, fit_speeds
from outlay.core.quantities import counted, format_seconds
from outlay.render.page import Block, Column, Line, Page, Section, Table
from outlay.render.report import Report, as_json, fields_as_json
from outlay.report.explain.explain_tables import from_here
from outlay.report.explain.explanation import Explanation
from outlay.report.explain.timeline_trace import described, named, origins_of, predicted_events, span

_MAX_ROWS = 12


@dataclass(frozen=True)
class TraceEvent:
    """One execution of an HLO instruction.

    Attributes:
        name: the instruction.
        track: the plane and the line of the trace, such as a GPU and one of its streams.
        begin: seconds since the first event of the program.
        seconds: the duration, including waiting for other devices.
    """

    name: str
    track: tuple[str, str]
    begin: float
    seconds: float


@dataclass(frozen=True)
class Timed:
    """The times of one operation of the compiled program, in seconds per device and step.

    Attributes:
        name: the HLO instruction.
        operation: the JAX primitive, such as `dot_general`; empty if unknown.
        phase: the phase of the step.
        module: the module of the model.
        line: the user's source line.
        leaf: the leaf that a collective moves; empty for other operations.
        predicted: the prediction of `explain`.
        measured: the profiler's measurement; None if the trace has no such event.
    """

    name: str
    operation: str
    phase: str
    module: str
    line: str
    leaf: str
    predicted: float
    measured: float | None


@dataclass(frozen=True)
class Compared:
    """The times of a group of operations.

    Attributes:
        name: the name of the group.
        predicted: predicted seconds per device and step.
        measured: measured seconds per device and step.
    """

    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None if nothing was predicted."""
        return self.measured / self.predicted if self.predicted else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**fields_as_json(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Profile(Report):
    """The predicted and the measured time of a step; returned by `outlay.profile`.

    Attributes:
        explanation: the program and its prediction.
        num_steps: the number of measured steps.
        num_devices: the number of devices; times are their mean.
        operations: every predicted operation.
        unknown_seconds: measured seconds of operations without a prediction.
        events: the trace.
    """

    explanation: Explanation
    num_steps: int
    num_devices: int
    operations: tuple[Timed, ...]
    unknown_seconds: float
    events: tuple[TraceEvent, ...]

    @property
    def predicted_seconds(self) -> float:
        """The sum over all operations, ignoring overlap."""
        return sum(one.predicted for one in self.operations)

    @property
    def measured_seconds(self) -> float:
        """The sum over all operations, ignoring overlap."""
        return sum(one.measured or 0.0 for one in self.operations) + self.unknown_seconds

    def by_line(self) -> tuple[Compared, ...]:
        """Sum the operations by source line, slowest first."""
        return self._by(lambda one: one.line)

    def by_module(self) -> tuple[Compared, ...]:
        """Sum the operations by module; identical layers count as one."""
        return self._by(lambda one: starred(one.module))

    def by_phase(self) -> tuple[Compared, ...]:
        """Sum the operations by phase of the step."""
        return self._by(lambda one: one.phase)

    def by_leaf(self) -> tuple[Compared, ...]:
        """Sum the operations by the leaf that they move; identical layers count as one."""
        return tuple(one for one in self._by(lambda one: starred(one.leaf)) if one.name)

    def fitted_speeds(self) -> FittedSpeeds:
        """Fit the hardware speeds for which the prediction equals the measurement; `write` saves them as a target.

        Raises:
            TargetError: no measured operation has a price.
        """
        schedule, target = self.explanation.schedule, self.explanation.target
        assert schedule is not None  # or nothing would have been predicted
        assert target is not None
        return fit_speeds(schedule, target, {one.name: one.measured for one in self.operations if one.measured})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, without the trace itself."""
        groups = {"line": self.by_line, "module": self.by_module, "phase": self.by_phase, "leaf": self.by_leaf}
        return {
            "name": self.explanation.name,
            "target": str(self.explanation.target) if self.explanation.target else None,
            **fields_as_json(self, "explanation", "events"),
            "predicted_seconds": self.predicted_seconds,
            "measured_seconds": self.measured_seconds,
            **{f"by_{name}": as_json(group()) for name, group in groups.items()},
        }

    def to_trace(self) -> dict[str, Any]:
        """Make a trace for Perfetto or Chrome: the predicted step above the measured ones."""
        return {"traceEvents": [*predicted_events(self.explanation), *self._measured_events()], "displayTimeUnit": "ms"}

    def _measured_events(self) -> Iterator[dict[str, Any]]:
        origins = origins_of(self.explanation)
        tracks = list(dict.fromkeys(event.track for event in self.events))
        # From 2 on: 1 is the predicted device.
        planes = {plane: number for number, plane in enumerate(dict.fromkeys(plane for plane, _ in tracks), 2)}
        for plane, number in planes.items():
            lines = {at: line for at, (of, line) in enumerate(tracks, 1) if of == plane}
            yield from named(number, f"measured: {plane}, {counted(self.num_steps, 'step')}", lines)
        for event in self.events:
            plane, thread = planes[event.track[0]], tracks.index(event.track) + 1
            yield span(plane, thread, event.name, event.begin, event.seconds, described(event.name, origins))

    def _in_short(self) -> str:
        measured, predicted = map(format_seconds, (self.measured_seconds, self.predicted_seconds))
        return f"{self.explanation.name}: {measured} a step measured, {predicted} predicted"

    def _page(self) -> Page:
        steps = f"{counted(self.num_steps, 'step')} on {counted(self.num_devices, 'device')}"
        target = f" of {self.explanation.target}" if self.explanation.target else ""
        groups = {
            "line": tuple(replace(one, name=_line_from_here(one.name)) for one in self.by_line()),
            # Functions inside functions are told by their names: where Python says so it says so in a word of its own.
            "module": tuple(replace(one, name=one.name.replace("<locals>.", "")) for one in self.by_module()),
            "phase": self.by_phase(),
            "leaf that is moved": self.by_leaf(),
        }
        return Page(
            f"{self.explanation.name}: {steps}, predicted with the speeds{target}",
            [
                *self._summary(),
                *(Section(f"by {name}", [_table(name, group)]) for name, group in groups.items() if group),
            ],
        )

    def _summary(self) -> Iterator[Block]:
        total = Compared("", self.predicted_seconds, self.measured_seconds)
        yield Line(f"operations of a step: {_in_a_line(total)}")
        missing = [one for one in self.operations if one.measured is None and one.predicted]
        if missing:
            seconds = format_seconds(sum(one.predicted for one in missing))
            yield Line(f"{len(missing)} of {len(self.operations)} operations are not in the trace: predicted {seconds}")
        if self.unknown_seconds:
            yield Line(f"measured but not predicted: {format_seconds(self.unknown_seconds)}")
        options = self.explanation.compiler_options
        yield from (Line(note) for note in (options.notes if options else ()))
        mesh = self.explanation.mesh
        if mesh is not None and mesh.kind == "simulated":
            yield Line(
                "simulated devices share this machine's cores: these times say nothing about real hardware", "warning"
            )

    def _by(self, name: Callable[[Timed], str]) -> tuple[Compared, ...]:
        sums: dict[str, tuple[float, float]] = {}
        for one in self.operations:
            predicted, measured = sums.get(name(one), (0.0, 0.0))
            sums[name(one)] = predicted + one.predicted, measured + (one.measured or 0.0)
        groups = [Compared(key, *seconds) for key, seconds in sums.items()]
        return tuple(sorted(groups, key=lambda one: -max(one.measured, one.predicted)))


def _table(title: str, groups: Sequence[Compared]) -> Table:
    heads = ("predicted", "measured", "ratio")
    columns = [
        (Column(title), lambda one: one.name or "unknown"),
        *((Column(head, "number"), lambda one, at=at: _words(one)[at]) for at, head in enumerate(heads)),
    ]
    others = groups[_MAX_ROWS:]
    together = Compared("", sum(one.predicted for one in others), sum(one.measured for one in others))
    rest = f"and {len(others)} more: {_in_a_line(together)}"
    return Table.of(groups, columns, limit=_MAX_ROWS, rest=rest)


def _line_from_here(line: str) -> str:
    file, colon, number = line.rpartition(":")
    return f"{from_here(file)}:{number}" if colon else line


def _in_a_line(one: Compared) -> str:
    predicted, measured, ratio = _words(one)
    return f"predicted {predicted}, measured {measured}" + (f", ratio {ratio}" if ratio else "")


def _words(one: Compared) -> tuple[str, str, str]:
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    return format_seconds(one.predicted), format_seconds(one.measured), ratio
