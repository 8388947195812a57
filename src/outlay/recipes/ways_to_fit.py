"""The changes that should make a recipe fit its target, by the arithmetic that `choose` begins with."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlay.core.disk_cache import DiskCache, cache_folder, key_of, loaded_code
from outlay.core.error_types import OutlayError
from outlay.core.quantities import format_bytes
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.plan import Plan
from outlay.program.make import of_parts
from outlay.program.modes import Mode
from outlay.recipes.arguments import VARIED, defaults, option_values, recipe_arguments, without_options
from outlay.recipes.find import find_function, find_recipe
from outlay.recipes.prepare import Prepared, example_batch, layout_names, layout_of, mode_of, on_devices
from outlay.recipes.recipe import Recipe
from outlay.report.explain.explanation import Explanation
from outlay.search.analytic_cost import Expectation, expect
from outlay.search.candidate import Candidate, mesh_shapes
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
        """Return JSON-ready data."""
        options = dict(self.candidate.options)
        where = {"layout": self.candidate.layout, "mesh": self.candidate.mesh, "options": options}
        return {**where, "num_bytes": self.num_bytes, "command": self.command}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WayToFit:
        """Read back what `to_dict` gave."""
        candidate = Candidate(data["layout"], data["mesh"], tuple(data["options"].items()))
        return cls(candidate, data["num_bytes"], data["command"])

    def __str__(self) -> str:
        return f"about {format_bytes(self.num_bytes)}: {self.command}"


def memory_options(
    prepared: Prepared,
    explanation: Explanation,
    recipe: str,
    words: Sequence[str],
    target: str | None,
    compiler_options: str = "preset",
    *,
    cache: bool = False,
) -> list[WayToFit]:
    """List the changes that should make an explained recipe fit its target; empty if it fits already.

    Args:
        prepared: what was explained.
        explanation: what `outlay.explain` says of it.
        recipe: the recipe as the user named it.
        words: its options, as words of a command line.
        target: the hardware as text; None where no target was asked for.
        compiler_options: options of the compiler, for the commands.
        cache: whether the answer may be that of an earlier call, and is kept for the next one.
    """
    if target is None or explanation.fits is not False:
        return []
    hardware, memory = Target.parse(target), explanation.memory
    failed = [finding.cost_bytes for finding in explanation.findings if finding.kind == "out-of-memory"]
    changes = Changes(
        Candidate(prepared.layout_name, str(MeshSpec(prepared.program.plan.mesh.axis_sizes))),
        prepared.program.plan,
        prepared.program.mode,
        recipe,
        words,
        hardware,
        peak=memory.needed if memory else max(failed, default=0),
        capacity=memory.pool if memory else hardware.hardware.memory_bytes,
        compiler_options=compiler_options,
    )
    if not cache:
        return changes.that_fit()
    kept_by, plan = DiskCache(cache_folder()), json.dumps(prepared.program.plan.to_dict())
    asked = (
        changes.own,
        changes.mode,
        recipe,
        *words,
        hardware.hardware,
        hardware,
        changes.peak,
        changes.capacity,
        compiler_options,
    )
    key = key_of("ways to fit", plan, *asked, loaded_code())
    ways = _read_ways(kept_by.load(key))
    if ways is None:
        ways = changes.that_fit()
        kept_by.store(key, [way.to_dict() for way in ways])
    return ways


def _read_ways(data: Any) -> list[WayToFit] | None:
    try:
        return [WayToFit.from_dict(way) for way in data]
    except (TypeError, KeyError, ValueError):
        return None


def describe_memory_options(
    explanation: Explanation, ways: Sequence[WayToFit], recipe: str, words: Sequence[str], target: str | None
) -> Iterator[str]:
    """Describe the changes that should make a program fit, and the command that compiles every candidate.

    The arguments are those of `memory_options`, and what that returned.
    """
    if target is None or explanation.fits is not False:
        return
    if ways:
        yield "what should fit, by arithmetic:"
    yield from (f"  {way}" for way in ways)
    command = shlex.join(["outlay", "choose", recipe, *words, "--target", target])
    yield f"what fits and is fastest, compiled: {command}"


class Workloads:
    """The work of a recipe's candidates: each is traced once for its options and the names of its mesh axes.

    Args:
        recipe: the recipe as the user named it.
        words: its options, as words of a command line.
        made: the recipe, made with them.
        arguments: the values of all its options.
        mode: how its step is executed; the recipe's own mode if None.
        target: the hardware, whose kernels are traced; None for plain JAX.
    """

    def __init__(
        self,
        recipe: str,
        words: Sequence[str],
        made: Recipe,
        arguments: Mapping[str, Any],
        mode: Mode | None,
        target: Target | None,
    ) -> None:
        self._recipe, self._words, self._made, self._arguments = recipe, words, made, arguments
        self._mode: Mode | None = mode  # by itself: of a tuple its type would be a plain str
        self._target = target
        self._traced: dict[object, Workload] = {}
        self._are_alike: dict[tuple[str, ...], bool] = {}
        self._first_axes: tuple[str, ...] = ()
        self._first_text = ""

    def __call__(self, candidate: Candidate) -> Workload:
        """Return the work of a candidate, traced if it was not yet."""
        spec, options = MeshSpec.parse(candidate.mesh), dict(candidate.options)
        # What is traced may depend on the names of the axes, and not on their sizes.
        axes = tuple(spec.axis_sizes)
        if candidate.options and self._is_the_same_on(axes, candidate):
            axes = self._first_axes
        key = (candidate.options, axes)
        if key not in self._traced:
            made = find_recipe(self._recipe, (*self._words, *candidate.words)) if options else self._made
            microbatches = {**self._arguments, **options}.get("accumulate", 1)
            self._traced[key] = workload(
                *of_parts(made.step, made.init, made.parts),
                example_batch(made),
                spec,
                mode=self._mode or made.mode,
                microbatches=microbatches,
                target=self._target,
            )
        return self._traced[key]

    def _is_the_same_on(self, axes: tuple[str, ...], candidate: Candidate) -> bool:
        """Return whether the step as it is, without options, is the same on a mesh with other axes.

        Then it does not ask for their names, and one trace of each set of options is enough: of a large model each
        takes seconds.
        """
        if axes not in self._are_alike:
            text = str(self(replace(candidate, options=())).traced.jaxpr)
            self._first_text = self._first_text or text
            self._first_axes = self._first_axes or axes
            self._are_alike[axes] = text == self._first_text
        return self._are_alike[axes]


@dataclass(frozen=True)
class Changes:
    """The changes of a program that does not fit, tried by arithmetic: nothing is compiled.

    What the arithmetic expects of a change is taken times as much more as the compiler needed for the program that does
    not fit.

    Attributes:
        own: the layout and the mesh of what does not fit.
        plan: where its state and batch live.
        mode: how its step is executed.
        recipe: the recipe as the user named it.
        words: its options, as words of a command line.
        target: the hardware.
        peak: what the compiler says that the program needs on a device.
        capacity: what a device gives to programs.
        compiler_options: options of the compiler, for the commands.
        tried: what is known not to fit, with the options in which it is not as the recipe's defaults are.
    """

    own: Candidate
    plan: Plan
    mode: Mode
    recipe: str
    words: Sequence[str]
    target: Target
    peak: int
    capacity: int
    compiler_options: str = "preset"
    tried: Sequence[Candidate] = ()

    def that_fit(self) -> list[WayToFit]:
        """List the changes that should fit, each alone: a smaller batch, recomputation, more microbatches, a layout.

        Where none of them keeps the batch they are taken together, too.
        """
        alone = [way for each in self._one_change() if (way := self._first(each))]
        if any(not way.candidate.options or way.candidate.options[0][0] != "batch" for way in alone):
            return alone
        together = self._first(self._all_changes())
        return [*alone, together] if together else alone

    def _one_change(self) -> Iterator[Iterator[Candidate]]:
        """Yield the values of each option that can change, the smallest change first."""
        own = self.own
        for name in ("batch", *VARIED):
            yield (Candidate(own.layout, own.mesh, ((name, value),)) for value in self._values(name))
        yield (each for each in self._layouts() if each.layout != own.layout or each.mesh != own.mesh)

    def _all_changes(self) -> Iterator[Candidate]:
        """Yield full recomputation with more and more microbatches: in the program's own layout, then in all."""
        strongest = tuple(("remat", value) for value in self._values("remat")[-1:])
        microbatches = [(("accumulate", value),) for value in self._values("accumulate")]
        for layouts in ([self.own], self._layouts()):
            for options in ((), *microbatches):
                for each in layouts:
                    yield Candidate(each.layout, each.mesh, (*strongest, *options))

    def _values(self, name: str) -> list[Any]:
        """Return the values of an option that take less memory than its present one, the nearest first."""
        if name not in self._arguments:
            return []
        present, num_samples = self._arguments[name], self._workloads(self.own).num_samples
        powers = range(1, max(1, num_samples).bit_length())
        if name == "batch":
            return [num_samples >> power for power in powers]
        if name == "accumulate":
            return [1 << power for power in powers if 1 << power > present]
        values = list(option_values(self._function).get(name, ()))
        return values[values.index(present) + 1 :] if present in values else []

    def _layouts(self) -> list[Candidate]:
        """List every layout of the recipe on every mesh of the target."""
        return [
            Candidate(name, str(mesh))
            for name in layout_names(self._made, self.target)
            if mode_of(self._made, name) == mode_of(self._made, self.own.layout)
            for mesh in mesh_shapes(MeshSpec.parse(layout_of(self._made, name)[1]), self.target)
        ]

    def _first(self, candidates: Iterator[Candidate]) -> WayToFit | None:
        """Return the first candidate that should fit."""
        usual = defaults(self._function)
        tried = [(each.layout, each.mesh, {**usual, **dict(each.options)}) for each in self.tried]
        for candidate in candidates:
            if (candidate.layout, candidate.mesh, {**self._arguments, **dict(candidate.options)}) in tried:
                continue
            expected = self._expected(candidate)
            if expected is not None and expected.num_bytes * self._factor <= self.capacity:
                return WayToFit(candidate, int(expected.num_bytes * self._factor), self._command(candidate))
        return None

    def _expected(self, candidate: Candidate) -> Expectation | None:
        """Estimate the memory of a candidate by arithmetic; None if it cannot run."""
        try:
            work = self._workloads(candidate)
            layout = on_devices(layout_of(self._made, candidate.layout)[0], self.target.num_devices)
            plan = plan_of(work, layout, MeshSpec.parse(candidate.mesh), self.target)
        except (Rejected, OutlayError):
            return None
        return expect(work, plan, self.target, layout)

    def _command(self, candidate: Candidate) -> str:
        words = without_options(self.words, [name for name, _ in candidate.options])
        where = ("--target", str(self.target), "--layout", candidate.layout, "--mesh", candidate.mesh)
        mode_words = () if mode_of(self._made, candidate.layout) == self.mode else ("--mode", self.mode)
        more = () if self.compiler_options == "preset" else ("--compiler-options", self.compiler_options)
        return shlex.join(["outlay", "explain", self.recipe, *words, *candidate.words, *where, *mode_words, *more])

    @functools.cached_property
    def _function(self) -> Callable[..., Recipe]:
        return find_function(self.recipe)

    @functools.cached_property
    def _arguments(self) -> dict[str, Any]:
        return {**defaults(self._function), **recipe_arguments(self._function, self.recipe, self.words)}

    @functools.cached_property
    def _made(self) -> Recipe:
        return find_recipe(self.recipe, self.words)

    @functools.cached_property
    def _workloads(self) -> Workloads:
        return Workloads(self.recipe, self.words, self._made, self._arguments, self.mode, self.target)

    @functools.cached_property
    def _factor(self) -> float:
        """By how much more the compiler needed than the arithmetic says; never less than 1."""
        # Arithmetic leaves out what the compiler adds; below 1 it would promise what nobody has seen (decision 45).
        layout = on_devices(layout_of(self._made, self.own.layout)[0], self.target.num_devices)
        expected = expect(self._workloads(self.own), self.plan, self.target, layout)
        return max(1.0, self.peak / max(1, expected.num_bytes))
