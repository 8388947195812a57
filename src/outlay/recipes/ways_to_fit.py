"""What would fit where a recipe does not: one change after the other, by the arithmetic that `choose` begins with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import OutlayError
from outlay.core.quantities import format_bytes
from outlay.devices.spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.program.execution import Mode
from outlay.program.program import Program
from outlay.recipes.arguments import VARIED, defaults, option_values, recipe_arguments, without_options
from outlay.recipes.find import find_function, find_recipe
from outlay.recipes.prepare import Prepared, layout_names, layout_of, mode_of, on_devices
from outlay.report.explain.explanation import Explanation
from outlay.search.candidate import Candidate
from outlay.search.expect import Expectation, expect
from outlay.search.mesh_shapes import mesh_shapes
from outlay.search.screening import Rejected, plan_of
from outlay.search.workload import Workload, workload


@dataclass(frozen=True)
class WayToFit:
    """A change that should make a program fit.

    Attributes:
        candidate: the layout, its mesh and the options that change.
        num_bytes: what a device is expected to need then.
        command: compiles it, to see that it is so.
    """

    candidate: Candidate
    num_bytes: int
    command: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        options = dict(self.candidate.options)
        where = {"layout": self.candidate.layout, "mesh": self.candidate.mesh, "options": options}
        return {**where, "num_bytes": self.num_bytes, "command": self.command}

    def __str__(self) -> str:
        return f"about {format_bytes(self.num_bytes)}: {self.command}"


def ways_for(
    prepared: Prepared,
    explanation: Explanation,
    recipe: str,
    words: Sequence[str],
    target: str | None,
    xla: str = "preset",
) -> list[WayToFit]:
    """List the changes that should make an explained recipe fit its target; empty if it fits already.

    Args:
        prepared: what was explained.
        explanation: what `outlay.explain` says of it.
        recipe: the recipe as the user named it.
        words: its options, as words of a command line.
        target: the hardware as text; None where no target was asked for.
        xla: options of the compiler, for the commands.
    """
    if target is None or explanation.fits is not False:
        return []
    hardware, memory = Target.parse(target), explanation.memory
    failed = [finding.cost_bytes for finding in explanation.findings if finding.kind == "out-of-memory"]
    peak = memory.needed if memory else max(failed, default=0)
    capacity = memory.pool if memory else hardware.hardware.memory_bytes
    own = Candidate(prepared.layout_name, _mesh_text(prepared.program))
    mode = prepared.program.mode
    plan = prepared.program.plan
    return ways_to_fit(own, plan, mode, recipe, words, hardware, peak=peak, capacity=capacity, xla=xla)


def what_would_fit(
    explanation: Explanation, ways: Sequence[WayToFit], recipe: str, words: Sequence[str], target: str | None
) -> Iterator[str]:
    """Describe the changes that should make a program fit, and the command that compiles every candidate.

    The arguments are those of `ways_for`, and what that returned.
    """
    if target is None or explanation.fits is not False:
        return
    if ways:
        yield "what should fit, by arithmetic:"
    yield from (f"  {way}" for way in ways)
    command = shlex.join(["outlay", "choose", recipe, *words, "--target", target])
    yield f"what fits and is fastest, compiled: {command}"


def ways_to_fit(
    own: Candidate,
    plan: Plan,
    mode: Mode,
    recipe: str,
    words: Sequence[str],
    target: Target,
    *,
    peak: int,
    capacity: int,
    xla: str = "preset",
    tried: Sequence[Candidate] = (),
) -> list[WayToFit]:
    """List the changes that should fit, each alone: a smaller batch, recomputation, more microbatches, another layout.

    Where none of them keeps the batch they are taken together, too. Nothing is compiled. What the arithmetic expects of
    a change is taken times as much more as the compiler needed for the program that does not fit.

    Args:
        own: the layout and the mesh of what does not fit.
        plan: where its state and batch live.
        mode: how its step is executed.
        recipe: the recipe as the user named it.
        words: its options, as words of a command line.
        target: the hardware.
        peak: what the compiler says that the program needs on a device.
        capacity: what a device gives to programs.
        xla: options of the compiler, for the commands.
        tried: what is known not to fit, with the options in which it is not as the recipe's defaults are.
    """
    trial = _Trial(own, plan, mode, recipe, tuple(words), target, peak, capacity, xla, tried)
    alone = [way for each in _one_change(trial, own) if (way := trial.first(each))]
    if any(not way.candidate.options or way.candidate.options[0][0] != "batch" for way in alone):
        return alone
    together = trial.first(_all_changes(trial, own))
    return [*alone, together] if together else alone


def _one_change(trial: _Trial, own: Candidate) -> Iterator[Iterator[Candidate]]:
    """Iterate over single changes: for each option its values, the smallest change first."""
    for name in ("batch", *VARIED):
        yield (Candidate(own.layout, own.mesh, ((name, value),)) for value in trial.values(name))
    yield (each for each in trial.layouts() if each.layout != own.layout or each.mesh != own.mesh)


def _all_changes(trial: _Trial, own: Candidate) -> Iterator[Candidate]:
    """Iterate over combined changes: full recomputation with ever more microbatches, in the own layout, then in all."""
    strongest = tuple((name, values[-1]) for name in ("remat",) if (values := trial.values(name)))
    microbatches = [(("accumulate", value),) for value in trial.values("accumulate")]
    for layouts in ([own], trial.layouts()):
        for options in ((), *microbatches):
            for each in layouts:
                yield Candidate(each.layout, each.mesh, (*strongest, *options))


class _Trial:
    """Tries changes of one program by arithmetic."""

    def __init__(
        self,
        own: Candidate,
        plan: Plan,
        mode: Mode,
        recipe: str,
        words: tuple[str, ...],
        target: Target,
        peak: int,
        capacity: int,
        xla: str,
        tried: Sequence[Candidate],
    ) -> None:
        self._own = own
        self._mode: Mode = mode
        self._recipe = recipe
        self._words = words
        self._target = target
        self._capacity = capacity
        self._xla = () if xla == "preset" else ("--xla", xla)
        self._function = find_function(recipe)
        usual = defaults(self._function)
        self._arguments = {**usual, **recipe_arguments(self._function, recipe, words)}
        self._tried = [(each.layout, each.mesh, {**usual, **dict(each.options)}) for each in tried]
        self._made = find_recipe(recipe, words)
        self._workloads: dict[object, Workload] = {}
        work = self._workload(own)
        self._num_samples = work.num_samples
        # As much more as the compiler needed, and never less than the arithmetic says.
        self._factor = max(1.0, peak / max(1, expect(work, plan, target).num_bytes))

    def values(self, name: str) -> list[Any]:
        """List the values of an option that take less memory than its present one, the nearest first."""
        if name not in self._arguments:
            return []
        if name == "batch":
            return [self._num_samples >> n for n in range(1, max(1, self._num_samples).bit_length())]
        if name == "accumulate":
            most = range(1, max(1, self._num_samples).bit_length())
            return [1 << n for n in most if 1 << n > self._arguments[name]]
        values = list(option_values(self._function).get(name, ()))
        present = self._arguments.get(name)
        return values[values.index(present) + 1 :] if present in values else []

    def layouts(self) -> list[Candidate]:
        """List every layout of the recipe on every mesh of the target."""
        return [
            Candidate(name, str(mesh))
            for name in layout_names(self._made, self._target)
            if mode_of(self._made, name) == mode_of(self._made, self._own.layout)
            for mesh in mesh_shapes(MeshSpec.parse(layout_of(self._made, name)[1]), self._target)
        ]

    def first(self, candidates: Iterator[Candidate]) -> WayToFit | None:
        """Return the first candidate that should fit."""
        for candidate in candidates:
            if (candidate.layout, candidate.mesh, {**self._arguments, **dict(candidate.options)}) in self._tried:
                continue
            expected = self._expected(candidate)
            if expected is not None and expected.num_bytes * self._factor <= self._capacity:
                return WayToFit(candidate, int(expected.num_bytes * self._factor), self._command(candidate))
        return None

    def _expected(self, candidate: Candidate) -> Expectation | None:
        """Return the expected memory and time of a candidate; None if it cannot run."""
        try:
            work = self._workload(candidate)
            plan = plan_of(work, self._layout(candidate), MeshSpec.parse(candidate.mesh), self._target)
        except (Rejected, OutlayError):
            return None
        return expect(work, plan, self._target)

    def _layout(self, candidate: Candidate) -> Layout:
        return on_devices(layout_of(self._made, candidate.layout)[0], self._target.num_devices)

    def _workload(self, candidate: Candidate) -> Workload:
        key = (candidate.options, tuple(MeshSpec.parse(candidate.mesh).axis_sizes))
        if key not in self._workloads:
            options = dict(candidate.options)
            made = find_recipe(self._recipe, (*self._words, *candidate.words)) if options else self._made
            microbatches = {**self._arguments, **options}.get("accumulate", 1)
            spec = MeshSpec.parse(candidate.mesh)
            self._workloads[key] = workload(
                made.step, made.init, made.data[0], spec, mode=self._mode, microbatches=microbatches
            )
        return self._workloads[key]

    def _command(self, candidate: Candidate) -> str:
        words = without_options(self._words, [name for name, _ in candidate.options])
        where = ("--target", str(self._target), "--layout", candidate.layout, "--mesh", candidate.mesh)
        mode_words = () if mode_of(self._made, candidate.layout) == self._mode else ("--mode", self._mode)
        return shlex.join(
            ["outlay", "explain", self._recipe, *words, *candidate.words, *where, *mode_words, *self._xla]
        )


def _mesh_text(program: Program) -> str:
    return ",".join(f"{name}={size}" for name, size in program.mesh.shape.items())
