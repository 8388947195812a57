"""The price of a published run, by what the compiler made of its programs."""

import dataclasses
from dataclasses import dataclass

from _published_run import Run, num_layers

from outlay.analysis.cost.constants import built_in
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Schedule
from outlay.devices.target import Target


@dataclass(frozen=True)
class Priced:
    """A published run and what is predicted of it.

    Attributes:
        run: the row.
        seconds: of a step, as expected.
        low: the least.
        high: the most.
        peak: bytes that a device needs.
        fits: whether it is said to fit.
        is_most: whether the peak is a sum of what is not all there at once, so that a device needs less.
        schedules: what was priced: that of its program, of a pipeline those of two.
    """

    run: Run
    seconds: float
    low: float
    high: float
    peak: int
    fits: bool
    is_most: bool
    schedules: tuple[Schedule, ...] = ()

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.seconds / self.run.seconds

    @property
    def is_inside(self) -> bool:
        """Whether the published time lies in the range."""
        return self.low <= self.run.seconds <= self.high


def price_of(run, facts) -> Priced:
    """Price a run by its facts; no compiler is asked."""
    schedules = tuple(Schedule.from_dict(one["schedule"]) for one in _programs(facts))
    is_most = is_tpu(run) and not any(one["memory"].get("peak_memory_in_bytes") for one in _programs(facts))
    return Priced(run, *_seconds(run, schedules), peak_of(run, facts), fits(run, facts), is_most, schedules)


def repriced(one: Priced, constants) -> Priced:
    """Price a run with other constants, by kind of hardware."""
    seconds, low, high = _seconds(one.run, one.schedules, constants)
    return dataclasses.replace(one, seconds=seconds, low=low, high=high)


def table_for(run, constants=None):
    """Return the constants that a run is priced with: those of its attention kernel, and others by kind of hardware."""
    table = dict(built_in())
    for changes in (run.kernels, constants or {}):
        for name, changed in changes.items():
            table[name] = {**table.get(name, {}), **changed}
    return table


def peak_of(run, facts):
    """Return the bytes that a device of a run needs at most; of a pipeline those that its schedule holds at once."""
    held = run.microbatches if run.layout.stages == 1 else run.most_held
    return round(along(run, held, [one["peak"] for one in _programs(facts)]) + run.held)


def fits(run, facts):
    """Return whether a device holds a run. The compiler for TPUs refuses a program that does not fit."""
    return is_tpu(run) or peak_of(run, facts) <= Target.parse(run.target).hardware.memory_bytes


def is_tpu(run):
    """Return whether a run is one on TPUs."""
    return Target.parse(run.target).hardware.kind == "tpu"


def along(run, microbatches, values):
    """Return a figure of a run with so many microbatches, by those of its programs; of a single program its own."""
    if len(values) == 1:
        return values[0]
    (first, second), (low, high) = (program.microbatches for program in run.programs), values
    return low + (high - low) * (microbatches - first) / (second - first)


def waiting(run, whole, outside):
    """Return the seconds that a pipeline's stages wait for the slowest, which the programs of Outlay never do.

    These split the head over all stages; in the frameworks the last has it beside its layers.

    Args:
        run: the run.
        whole: what each of its programs takes.
        outside: what each takes outside of its pipeline.
    """
    if run.layout.stages == 1 or run.has_a_shorter_stage:
        return 0.0
    slope, head = (along(run, 1, some) - along(run, 0, some) for some in (whole, outside))
    stages, num = run.layout.stages, num_layers(run.row)
    layer = (slope - head) * stages / num
    last = range(1, num // stages + 1) if run.balances_stages else [num // stages]
    slowest = min(max(-(-(num - of) // (stages - 1)) * layer, of * layer + head * stages) for of in last)
    return run.microbatches * (slowest - slope)


def _programs(facts):
    return facts.get("programs", [facts])


def _seconds(run, schedules, constants=None):
    """Return the expected, the least and the most seconds of a step."""

    def each(some, name):
        return [getattr(price(one, run.target, constants=table_for(run, constants)), name) for one in some]

    is_staged = run.layout.stages > 1
    schedules = [_without_moves_to_stages(one) for one in schedules] if is_staged else schedules
    outside = [_outside_loops(one) for one in schedules] if is_staged else []
    for name in ("seconds", "seconds_low", "seconds_high"):
        whole = each(schedules, name)
        yield along(run, run.microbatches, whole) + waiting(run, whole, each(outside, name))


def _without_moves_to_stages(schedule):
    """Leave out what moves layers to their stages and samples to the heads of all: frameworks have both in place."""

    def moves(event):
        return event.kind in ("exchange", "start", "wait") and schedule.exchanges[event.number].axes == ("stage",)

    blocks = dict(schedule.blocks)
    blocks[schedule.entry] = tuple(event for event in blocks[schedule.entry] if not moves(event))
    return dataclasses.replace(schedule, blocks=blocks)


def _outside_loops(schedule):
    blocks = {
        name: tuple(event for event in events if event.kind != "loop") for name, events in schedule.blocks.items()
    }
    return dataclasses.replace(schedule, blocks=blocks)
