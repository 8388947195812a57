"""Sort candidates by arithmetic, before anything is compiled: those worth compiling and those ruled out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from outlay.core.errors import OutlayError
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.meshes.spec import MeshSpec
from outlay.meshes.target import Target
from outlay.search.candidate import Candidate
from outlay.search.expect import expect
from outlay.search.order import Screened
from outlay.search.reject import Rejected, plan_of
from outlay.search.workload import Workload


@dataclass(frozen=True)
class RuledOut:
    """A candidate that is not compiled, and why."""

    candidate: Candidate
    why: str


def screen(
    candidates: Iterable[Candidate],
    layouts: Mapping[str, Layout],
    workload_of: Callable[[Candidate], Workload],
    target: Target,
) -> tuple[list[Screened], list[RuledOut]]:
    """The candidates that could run, fastest first as far as arithmetic tells, and those that could not.

    Args:
        candidates: all of them.
        layouts: their layouts, by name.
        workload_of: what a candidate computes.
        target: the hardware.
    """
    passed: list[Screened] = []
    ruled_out: list[RuledOut] = []
    seen: dict[object, Candidate] = {}
    for candidate in candidates:
        try:
            work = workload_of(candidate)
            plan = plan_of(work, layouts[candidate.layout], MeshSpec.parse(candidate.mesh), target)
        except Rejected as rejected:
            ruled_out.append(RuledOut(candidate, str(rejected)))
            continue
        except OutlayError as error:  # these options make no recipe, or no step
            ruled_out.append(RuledOut(candidate, str(error).partition("\n")[0]))
            continue
        twin = seen.setdefault((candidate.options, _placement(plan)), candidate)
        if twin is candidate:
            passed.append(Screened(candidate, expect(work, plan, target)))
        else:
            ruled_out.append(RuledOut(candidate, f"places everything as {twin.layout} does on {twin.mesh}"))
    return sorted(passed, key=lambda each: each.expected.seconds), ruled_out


def _placement(plan: Plan) -> object:
    """Where everything is, in a form that is equal for plans that differ by axes of size 1 only."""
    real = {name: size for name, size in plan.mesh.axes if size > 1}
    leaves = [(leaf.path, tuple(tuple(a for a in axes if a in real) for axes in leaf.dims)) for leaf in plan]
    return tuple(real.items()), tuple(leaves)
