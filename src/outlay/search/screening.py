"""Decide by arithmetic which candidates are ruled out and which to compile next, corrected by what was compiled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlay.core.error_types import LayoutError, MeshError, OutlayError, ProgramError
from outlay.core.quantities import format_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout, sample_axes
from outlay.layout.plan import Plan
from outlay.program.constraints import check_constraints
from outlay.program.diagnose import check_devices
from outlay.search.analytic_cost import Expectation, expect
from outlay.search.candidate import Candidate, mesh_info
from outlay.search.compiled_price import Price
from outlay.search.exchange_cost import context_of, context_problems
from outlay.search.placed_work import Leaves, Stages, certain_bytes
from outlay.search.selection import Considered
from outlay.search.workload import Workload

_TURNS = 3
_CLEARLY_LESS = 0.8
"""The share of memory below which the arithmetic cannot tell candidates apart."""
_MOST = 10_000
"""The number of candidates up to which the arithmetic looks at each: minutes of it."""
_LOOKS = 6
"""How many it looks at of a layout on a mesh before."""


@dataclass(frozen=True)
class Screened:
    """A candidate that the arithmetic does not rule out.

    Attributes:
        candidate: the candidate.
        expected: what the arithmetic expects of it.
    """

    candidate: Candidate
    expected: Expectation


Look = Callable[[Sequence[Candidate]], Sequence[Screened]]
"""Returns those candidates that the arithmetic does not rule out, with what it expects of them."""


def promising(
    candidates: Sequence[Candidate], look: Look, capacity: int, most: int = _MOST
) -> tuple[Sequence[Candidate], list[Considered]]:
    """Return the candidates that are worth a look each, and all others as ruled out.

    The candidates of a layout on a mesh differ in numbers of its pipeline, exchanges and options of the recipe, such as
    what is recomputed. A few of them, apart from each other, say what to expect of them all.

    Args:
        candidates: all of them.
        look: the arithmetic.
        capacity: the memory of a device in bytes.
        most: how many to return, but of one layout on one mesh all.
    """
    if len(candidates) <= most:
        return candidates, []
    families: dict[tuple[str, str], list[Candidate]] = {}
    for each in candidates:
        families.setdefault(_family(each), []).append(each)
    orders: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    for one in look([each for family in families.values() for each in _spread(family)]):
        fits = one.expected.num_bytes <= capacity
        order = (not fits, one.expected.seconds_per_sample if fits else one.expected.num_bytes)
        orders.setdefault(_family(one.candidate), []).append(order)
    best = sorted(families, key=lambda family: min(orders.get(family, [(True, math.inf)])))
    ends = itertools.accumulate(len(families[family]) for family in best)
    taken = {family for place, (family, end) in enumerate(zip(best, ends, strict=True)) if end <= most or place == 0}
    why = "the few of this layout on this mesh that were looked at promise less than those of others"
    left_out = [Considered(each, "ruled out", why) for each in candidates if _family(each) not in taken]
    return [each for each in candidates if _family(each) in taken], left_out


def _family(candidate: Candidate) -> tuple[str, str]:
    return candidate.base_layout, candidate.mesh


def _spread(family: Sequence[Candidate]) -> list[Candidate]:
    """Return a few candidates from the first to the last, as far apart as they can be."""
    num = min(_LOOKS, len(family))
    return [family[place * (len(family) - 1) // max(1, num - 1)] for place in range(num)]


def screen(
    candidates: Iterable[Candidate],
    layouts: Mapping[str, Layout],
    workload_of: Callable[[Candidate], Workload],
    target: Target,
) -> tuple[list[Screened], list[Considered]]:
    """Return the candidates that may run, fastest first according to arithmetic, and the rejected ones.

    Args:
        candidates: all of them.
        layouts: their layouts, by name.
        workload_of: what a candidate computes.
        target: the hardware.
    """
    passed: list[Screened] = []
    ruled_out: list[Considered] = []
    seen: dict[object, Candidate] = {}
    plans = _Plans(target)
    for candidate in candidates:
        layout = layouts[candidate.layout]
        try:
            work = workload_of(candidate)
            plan = plans.of(work, layout, candidate.mesh)
        except Rejected as rejected:
            ruled_out.append(Considered(candidate, "ruled out", str(rejected)))
            continue
        except OutlayError as error:  # these options do not make a recipe, or a step
            ruled_out.append(Considered(candidate, "ruled out", str(error).partition("\n")[0]))
            continue
        # Layouts may come to the same plan, as FSDP does where every leaf is too small: one of them is compiled.
        twin = seen.setdefault((candidate.options, plans.placement(plan), _how_run(layout, plan.mesh)), candidate)
        if twin is candidate:
            passed.append(Screened(candidate, expect(work, plan, target, layout, plans.leaves(work, plan, layout))))
        else:
            ruled_out.append(
                Considered(candidate, "ruled out", f"places everything as {twin.layout} does on {twin.mesh}")
            )
    return sorted(passed, key=lambda each: each.expected.seconds_per_sample), ruled_out


def _placement(plan: Plan) -> object:
    """Return where everything is, in a form that is equal for plans that differ only in axes of size 1."""
    real = {name: size for name, size in plan.mesh.axes if size > 1}
    leaves = [
        (leaf.path, leaf.stored, tuple(tuple(a for a in axes if a in real) for axes in leaf.dims)) for leaf in plan
    ]
    return tuple(real.items()), tuple(leaves)


def _how_run(layout: Layout, mesh: MeshInfo) -> object:
    """Return what of a layout is about calls and loops, not about where values are."""
    context = context_of(layout, mesh)
    return Stages.of(layout, mesh), context and context.exchange


class _Plans:
    """Plans by what they depend on: most candidates differ in what is recomputed, or in numbers of a pipeline.

    Args:
        target: the hardware.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._plans: dict[object, Plan | Rejected] = {}
        self._mesh = functools.cache(lambda text: _mesh_of(text, target))
        # Plans are kept, so that their ids are nothing else's.
        self._leaves: dict[object, Leaves] = {}
        self._certain: dict[int, int] = {}
        self._shards: dict[object, tuple[str, ...]] = {}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[int, tuple[Any, int]] = {}  # with what is numbered, whose id is then nothing else's

    def of(self, work: Workload, layout: Layout, mesh: str) -> Plan:
        """Return the plan of a candidate that may run.

        Raises:
            Rejected: as `plan_of` does.
        """
        where, what = self._number(layout, _unnumbered), self._number(work, lambda one: one.shapes)
        info = self._mesh(mesh)
        if (key := (where, what, mesh)) not in self._shards:
            self._shards[key] = sample_axes(layout, work.batch, info)
        _check_even(work, layout, info, self._shards[key])
        if key not in self._plans:
            try:
                self._plans[key] = _plan_on(work, layout, info)
            except Rejected as rejected:
                self._plans[key] = rejected
        plan = self._plans[key]
        if isinstance(plan, Rejected):
            raise plan
        _check_calls(work, layout, plan.mesh)
        if id(plan) not in self._certain:
            self._certain[id(plan)] = certain_bytes(plan)
        _check_fits(self._certain[id(plan)], self._target)
        return plan

    def leaves(self, work: Workload, plan: Plan, layout: Layout) -> Leaves:
        """Return what follows from a plan alone, made once for all that has this plan."""
        key = (id(plan), Stages.of(layout, plan.mesh) is None, work.stacked, work.layers.shapes)
        if key not in self._leaves:
            self._leaves[key] = Leaves.of(work, plan, self._target, layout)
        return self._leaves[key]

    def placement(self, plan: Plan) -> int:
        """Return a number that plans have in common which place everything alike."""
        return self._number(plan, _placement)

    def _number(self, one: Any, key_of: Callable[[Any], object]) -> int:
        """Number what is large and the same for many candidates, so that it is compared once."""
        if id(one) not in self._number_of:
            self._number_of[id(one)] = one, self._numbers.setdefault(key_of(one), len(self._numbers))
        return self._number_of[id(one)][1]


def _unnumbered(layout: Layout) -> object:
    """Return the rules, their pipelines and contexts without what moves nothing that a plan knows of."""

    def alike(placement: Any) -> Any:
        if getattr(placement, "stage_axis", ""):
            return dataclasses.replace(placement, microbatches=2)
        return dataclasses.replace(placement, exchange=None) if getattr(placement, "context_axis", "") else placement

    return tuple(dataclasses.replace(rule, placement=alike(rule.placement)) for rule in layout)


class Rejected(Exception):
    """A candidate that the arithmetic rules out; the message says why."""


def plan_of(work: Workload, layout: Layout, mesh: MeshSpec, target: Target) -> Plan:
    """Return the plan of a candidate that may run.

    Raises:
        Rejected: it cannot run: the mesh or the layout does not fit, the batch is not divisible into microbatches, or
            state and batch alone need more memory than a device has.
    """
    info = _mesh_of(mesh, target)
    _check_even(work, layout, info, sample_axes(layout, work.batch, info))
    plan = _plan_on(work, layout, info)
    _check_calls(work, layout, info)
    _check_fits(certain_bytes(plan), target)
    return plan


def _mesh_of(mesh: MeshSpec | str, target: Target) -> MeshInfo:
    try:
        return mesh_info(MeshSpec.parse(mesh) if isinstance(mesh, str) else mesh, target)
    except MeshError as error:
        raise Rejected(_in_short(error)) from error


def _plan_on(work: Workload, layout: Layout, mesh: MeshInfo) -> Plan:
    try:
        plan = layout.plan(work.state, mesh, batch=work.batch, intermediates=work.traced.intermediates)
        check_devices(plan)
        check_constraints(work.traced, layout, plan)
    except (MeshError, LayoutError, ProgramError) as error:
        raise Rejected(_in_short(error)) from error
    return plan


def _check_calls(work: Workload, layout: Layout, mesh: MeshInfo) -> None:
    """Refuse an exchange that attention cannot take."""
    for problem in context_problems(work, layout, mesh):
        raise Rejected(f"{problem.kind}: {problem.what}")


def _in_short(error: OutlayError) -> str:
    """Return the first offender and the number of others; the error itself lists all of them at length."""
    problems = error.problems if isinstance(error, LayoutError) else ()
    if not problems:
        return str(error).partition("\n")[0]
    first, more = problems[0], len(problems) - 1
    return f"{first.kind}: {first.where}: {first.what}" + (f" (and {more} more)" if more else "")


def _check_even(work: Workload, layout: Layout, mesh: MeshInfo, axes: Sequence[str]) -> None:
    """Refuse microbatches that would leave devices idle, before the values inside the step are checked."""
    stages = Stages.of(layout, mesh)
    in_stages = stages.microbatches if stages is not None else 1
    if work.microbatches * in_stages == 1 or not work.num_samples:
        return
    shards = math.prod(mesh.axis_sizes[axis] for axis in axes)
    parts = f"{work.microbatches * in_stages} microbatches"
    if stages is not None:
        parts += (
            f" ({work.microbatches} x {in_stages} of the pipeline)" if work.microbatches > 1 else " of the pipeline"
        )
    if work.num_samples % (work.microbatches * in_stages):
        raise Rejected(f"{work.num_samples} samples are not divisible into {parts}")
    size = work.num_samples // (work.microbatches * in_stages)
    if size % shards:
        over = " x ".join(f"{axis}={mesh.axis_sizes[axis]}" for axis in axes)
        raise Rejected(f"microbatches of {size} samples are not divisible over {over}")


def _check_fits(needed: int, target: Target) -> None:
    memory = target.hardware.memory_bytes
    if needed > memory:
        raise Rejected(f"state and batch alone need {format_bytes(needed)} of {format_bytes(memory)} a device")


def next_to_compile(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> Screened:
    """Return the candidate to compile next.

    Candidates that are expected to fit come first: among them the fastest of each layout that has had no turn, then of
    each batch size, then the fastest of all. If none is expected to fit, the smallest comes first. Every third turn
    goes to the fastest that needs clearly less memory than all before it: these turns explore the trade of time for
    memory.

    Args:
        left: the candidates to choose from.
        taken: those that were compiled or are being compiled.
        priced: what the compiler said about some of those.
        capacity: the memory of a device.
    """
    factor = correction(priced)
    layouts = {each.candidate.base_layout for each in taken}
    batches = {each.expected.num_samples for each in taken}

    def order(each: Screened) -> tuple[bool, bool, bool, float]:
        expected = each.expected
        # What the compiler needed of others, over what was expected of them, holds roughly of all.
        if expected.num_bytes * factor > capacity:
            return True, False, False, expected.num_bytes
        had_turns = each.candidate.base_layout in layouts, expected.num_samples in batches
        return False, *had_turns, expected.seconds_per_sample

    return min(_prefer_low_memory(left, taken) or left, key=order)


def _prefer_low_memory(left: Sequence[Screened], taken: Collection[Screened]) -> list[Screened]:
    """Every third pick prefers candidates that need clearly less memory than all picked before."""
    if len(taken) % _TURNS != _TURNS - 1:
        return []
    least = min(each.expected.num_bytes for each in taken)
    return [each for each in left if each.expected.num_bytes <= _CLEARLY_LESS * least]


def in_order(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> list[Screened]:
    """Return all candidates in compile order; for the arguments see `next_to_compile`."""
    waiting, had_turns = list(left), list(taken)
    while waiting:
        had_turns.append(next_to_compile(waiting, had_turns, priced, capacity))
        waiting.remove(had_turns[-1])
    return had_turns[len(taken) :]


def correction(priced: Sequence[tuple[Screened, Price]]) -> float:
    """Return by what factor the compiler needs more memory than expected: the median so far."""
    return (
        statistics.median(price.peak_bytes / max(1, each.expected.num_bytes) for each, price in priced)
        if priced
        else 1.0
    )


def without_preset(priced: Sequence[tuple[Screened, Price]]) -> Screened | None:
    """Return the fastest candidate that fits so far, without the preset of options; None if nothing fits.

    A preset lets collectives overlap with computation, and keeps what they fetch in memory: without it a step is slower
    and smaller. No arithmetic tells by how much.
    """
    fitting = [(each, price) for each, price in priced if price.fits]
    if not fitting:
        return None
    fastest, _ = min(fitting, key=lambda pair: pair[1].seconds / pair[0].expected.num_samples)
    return replace(fastest, candidate=replace(fastest.candidate, compiler_options="none"))
