"""Compute attention with its tokens split over devices, where a rule of the layout says so (`outlay.layout.context`).

While the step is traced, its calls of attention are taken: those that a rule names by the function, the module or the
line that makes them, by an exchange between devices (`context_exchanges.py`); all others by themselves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jax

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_attention import taking_calls
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.contexts import Context, Exchange
from outlay.layout.rule import Rule
from outlay.models.attention.dot_product import attention
from outlay.program.contexts.context_exchanges import computed, num_beside, numbers_sent, problems, ring_of
from outlay.program.contexts.ring_chunks import Ring
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.place_inside import placing
from outlay.program.source_names import is_readable, line_in, names_of_frame

_NO_CALLS = (
    "the step calls none: give the model outlay.attention or jax.nn.dot_product_attention, or a module of attention of "
    "Flax or Equinox; one of Flax NNX only without dropout"
)

NAME = "split_attention"
"""The name of the pass; its note says what each call exchanges."""


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that calls of attention that rules name are computed with their tokens split.

    Raises:
        ProgramError: while it is traced: calls that cannot be computed so, or a rule that names none.
    """
    rules = _rules(planned)

    @functools.wraps(step, updated=())
    def split(*args: Any) -> Any:
        calls = _Calls(planned, rules)
        with within(current_attend, calls.attend), taking_calls():
            results = step(*args)
        calls.check()
        planned.notes[NAME] = "\n".join(calls.notes)
        return results

    return split


def check(planned: Planned) -> None:
    """Raise for split tokens where XLA does not place values inside the step."""
    if planned.is_placed_by_xla:
        return
    where = f"mode {planned.mode}" if planned.mode != "auto" else "a mesh with explicit axes"
    what = f"attention with split tokens is for mode auto on automatic axes; this is {where}"
    of = [Problem("not here", rule.written, what, 'mode="auto", or leave the rule out') for rule in _rules(planned)]
    raise ProgramError(f"{counted(len(of), 'rule')} of the layout cannot be applied here:", of)


def _rules(planned: Planned) -> list[Rule]:
    return [rule for rule in planned.layout if isinstance(rule.placement, Context)]


@dataclass
class _Calls:
    """The calls of attention of one trace."""

    planned: Planned
    rules: Sequence[Rule]
    problems: dict[str, Problem] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    seen: dict[str, None] = field(default_factory=dict)

    def attend(self, call: AttentionCall) -> Any:
        """Return the outputs of a call; None if no rule names it, or it cannot be computed so."""
        names, at = dict.fromkeys([f"@{call.name}"]), ""
        for frame in _frames():
            file = frame.f_code.co_filename
            names |= dict.fromkeys(f"@{name}" for name in names_of_frame(frame))
            at = at or f"{file}:{frame.f_lineno}"
            rank = self._rank_of_line(file, frame.f_lineno)
            names |= {} if rank is None else {self.rules[rank].pattern: None}
        self.seen |= dict.fromkeys([f"@{call.name}", *([f"@{at.rpartition('/')[2]}"] if at else [])])
        rank = next((rank for rank, rule in enumerate(self.rules) if _names(rule, names)), None)
        if rank is None:
            return None
        self.used.add(rank)
        placement: Any = self.rules[rank].placement
        num = self.planned.mesh.shape[placement.axis]
        if num == 1:
            return None
        beside = num_beside(self.planned.plan, self.planned.layout, self.planned.mesh.shape)
        ring = ring_of(call, placement.axis, num, placing(self.planned.mesh), num_beside=beside)
        exchange, why = _exchange(call, placement, ring)
        if of := [*self._axis_problems(placement, at), *problems(call, exchange, ring, at)]:
            self.problems |= {f"{one.where} {one.what}": one for one in of}
            return None
        self.notes[f"@{call.name} at {at}: {_in_words(call, exchange, ring)}{why}"] = None
        if exchange == "gather":
            ring = ring_of(call, placement.axis, num, ring.place, is_gathered=True)
        return computed(call, exchange, ring)

    def _rank_of_line(self, file: str, line: int) -> int | None:
        lines = ((rank, line_in(rule.pattern)) for rank, rule in enumerate(self.rules))
        return next((rank for rank, of in lines if of is not None and of.number == line and of.is_in(file)), None)

    def _axis_problems(self, placement: Context, at: str) -> Iterator[Problem]:
        if placement.axis in jax.sharding.get_abstract_mesh().manual_axes:
            what = f"the samples of the batch are split over {placement.axis!r}, so it cannot split their tokens"
            yield Problem("one axis twice", at, what, f"split the batch over another axis than {placement.axis!r}")

    def check(self) -> None:
        """Raise if calls cannot be computed with split tokens, or a rule names no call."""
        of = [*self.problems.values()]
        for rank, rule in enumerate(self.rules):
            if rank not in self.used and not rule.optional:
                what = "no call of attention in this step is, or is made by, what it names"
                near = did_you_mean(rule.pattern, self.seen) if self.seen else _NO_CALLS
                fix = f"{near}\nor delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
                of.append(Problem("unused rule", rule.written, what, fix))
        if of:
            raise ProgramError(f"{counted(len(of), 'problem')} with attention whose tokens are split:", of)


def _names(rule: Rule, names: Any) -> bool:
    return any(rule.pattern == name or rule.matches(name, "intermediate") for name in names)


def _frames() -> Iterator[FrameType]:
    """Yield the frames of programs, not of libraries or of attention itself, that led here; the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != attention.__code__.co_filename and is_readable(file):
            yield frame
        frame = frame.f_back


def _exchange(call: AttentionCall, placement: Context, ring: Ring) -> tuple[Exchange, str]:
    """Return the exchange of a call, and why it was chosen if no rule says it."""
    if placement.exchange is not None:
        return placement.exchange, ""
    sent = numbers_sent(call, ring)
    chosen = min(sent, key=lambda each: sent[each])
    others = ", ".join(f"{each} {number:g}" for each, number in sent.items())
    return chosen, f"; it sends least, in numbers of a head for each token: {others}"


def _in_words(call: AttentionCall, exchange: Exchange, ring: Ring) -> str:
    over, tokens = f"over {ring.axis}={ring.num}", call.query.shape[1]
    if exchange == "all_to_all":
        return f"tokens exchanged for heads {over}"
    halves = ", halves exchanged" if ring.is_mirrored(tokens) else ""
    if exchange == "gather":
        return f"keys and values gathered {over}{halves}"
    return f"a ring {over}, {counted(ring.num_hops(tokens), 'hop')}{halves}"
