"""`outlay.choose`: the question of a recipe on a target, and the process that prices one candidate of it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from outlay.core.disk_cache import DiskCache, cache_folder
from outlay.core.error_types import OutlayError, RecipeError
from outlay.core.jax_compat import backend_is_started
from outlay.core.public_names import called_as
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.simulated import simulate
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.program.modes import Mode
from outlay.program.program import Program
from outlay.recipes.arguments import defaults, option_sets, recipe_arguments, several_values
from outlay.recipes.find import find_function, find_recipe, name_of
from outlay.recipes.layouts_to_try import ways_of_layouts
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe import Recipe
from outlay.recipes.ways_to_fit import Changes, WayToFit, Workloads
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation
from outlay.search.candidate import Candidate, candidates, words_of
from outlay.search.compiled_price import Price, compiled_price
from outlay.search.exchange_cost import in_pieces
from outlay.search.placement.choice import PlacementChoice
from outlay.search.placement.placement_search import choose_placement
from outlay.search.screening import plan_of
from outlay.search.search import Question, search
from outlay.search.selection import Selection
from outlay.search.workers import NUM_CANDIDATES, TIMEOUT, default_processes
from outlay.search.workload import Workload

COMMAND = (sys.executable, "-P", "-m", __name__)
"""Starts this process; the job is its last argument. `-P` keeps the working folder from shadowing modules."""


@called_as('outlay.choose("digits", target="h100:1x8")')
def choose(
    recipe: str | Callable[..., Recipe],
    *,
    target: str,
    options: Mapping[str, Any] | None = None,
    layouts: Sequence[str] | None = None,
    meshes: Sequence[str] | None = None,
    mode: str | None = None,
    compiler_options: str | None = None,
    num_candidates: int = NUM_CANDIDATES,
    processes: int | None = None,
    timeout: float = TIMEOUT,
) -> Selection | PlacementChoice:
    """Choose a layout and a mesh for a target, with the target's own compiler and without the hardware.

    Candidates are the recipe's layouts on every mesh that the target's devices can make with the axes of the layout's
    own mesh, those of stages, tokens and experts inside hosts and across them, split tokens with each exchange, and
    pipelines with several numbers of microbatches and repeats; all with every value of `remat` and `accumulate` where
    the recipe function has these parameters, and with every batch that is asked for. Arithmetic rules out what cannot
    be divided and cannot fit, and orders the rest. The best are compiled, each in a process of its own, and every third
    turn goes to one that needs less memory. They are ranked by `outlay.estimate` among those that fit, by the time of
    an example where batches differ. What was compiled is kept on disk: the same question is answered faster the next
    time, and after Ctrl-C the search goes on where it was. State and batch stay abstract. Progress goes to stderr.

    Of a recipe whose step is a `GraphLoop` the question is which parts go to which devices, and whether one device is
    best. Where the target's devices are attached, as those of `cpu:6` are, the parts and the best arrangements of them
    are measured here; elsewhere they are estimated. Options that narrow a search are not for these.

    Args:
        recipe: a recipe by name or `path/to/file.py:function`, or the function, which other processes must be able to
            find: at the top level of a file.
        target: the hardware, such as `h100:32x8`.
        options: options of the recipe, such as `{"model": "llama3.2-3b"}`; one that is given is not varied. A batch
            may be a list of several to try, `{"batch": [64, 128]}`.
        layouts: the layouts to choose from, by name or as TOML files; all of the recipe's if None.
        meshes: the meshes to choose from, as text, for every layout; if None all that are possible.
        mode: how the step is executed; the recipe's own mode if None.
        compiler_options: `preset`, `none`, or the name of a file of options of the compiler; if None the preset, and
            the best without it.
        num_candidates: how many to compile.
        processes: how many at a time; if None, as many as there are cores and memory for.
        timeout: seconds for each.

    Raises:
        ChooseError: nothing can run on the target; the message says what comes nearest.
        TargetError: there is no such target, or its compiler is not installed.
        RecipeError: there is no such recipe, option or layout.
        MeshError: a mesh does not fit the target.

    Example, which takes minutes::

        selection = outlay.choose("lm", target="h100:32x8", options={"model": "llama3.2-3b"})
        print(selection)
        Path("chosen.toml").write_text(selection.toml)
    """
    return choose_by_words(
        name_of(recipe),
        words_of(options or {}),
        target,
        narrowed={"layouts": layouts, "meshes": meshes, "mode": mode},
        compiler_options=compiler_options,
        num_candidates=num_candidates,
        processes=processes,
        timeout=timeout,
    )


def choose_by_words(
    recipe: str,
    words: Sequence[str],
    target: str,
    *,
    known: Sequence[str] = (),
    narrowed: Mapping[str, Any],
    compiler_options: str | None,
    num_candidates: int,
    processes: int | None,
    timeout: float,
) -> Selection | PlacementChoice:
    """Choose for a recipe whose options are words of a command line; all else is as for `choose`.

    Args:
        recipe: the recipe by name, as a file that is one, or as `path/to/file.py:function`.
        words: the recipe's options.
        target: the hardware.
        known: the command's own options, which a mistyped word may have meant.
        narrowed: the layouts, the meshes and the mode to choose from, in this order, by the names that the user knows.
        compiler_options: as for `choose`, like the next three.
        num_candidates: likewise.
        processes: likewise.
        timeout: likewise.
    """
    hardware = Target.parse(target)
    chosen = choose_for_graph(recipe, words, hardware, known=known, narrowed=narrowed)
    if chosen is not None:
        return chosen
    layouts, meshes, mode = narrowed.values()
    question = ask(
        recipe,
        words,
        hardware,
        known=known,
        layouts=layouts,
        meshes=meshes,
        mode=mode,
        compiler_options=compiler_options,
    )
    num_processes = processes or default_processes()
    return search(question, num_candidates=num_candidates, num_processes=num_processes, timeout=timeout)


def choose_for_graph(
    recipe: str, words: Sequence[str], target: Target, *, known: Sequence[str] = (), narrowed: Mapping[str, Any]
) -> PlacementChoice | None:
    """Choose how to run a recipe's graph on a target; None unless the recipe's step is a `GraphLoop`.

    Args:
        recipe: the recipe by name, as a file that is one, or as `path/to/file.py:function`.
        words: the recipe's options, as words of a command line.
        target: the hardware.
        known: the command's own options, which a mistyped word may have meant.
        narrowed: what would narrow the search of another recipe, by name.

    Raises:
        RecipeError: something would narrow the search.
    """
    several, fixed = several_values(find_function(recipe), words)
    made = find_recipe(recipe, fixed, known)
    graph_loop = made.graph_loop
    if graph_loop is None:
        return None
    given = [*(name for name, value in narrowed.items() if value), *(f"several values of {name}" for name in several)]
    if given:
        raise RecipeError(
            f"{recipe} is a graph of parts, whose ways to run are all compared: {', '.join(given)} cannot be given"
            "\n  fix: leave it out"
        )
    if target.hardware.kind == "cpu" and not backend_is_started():
        simulate(target.num_devices)
    fixed_layouts = {name: layout for name, layout in made.layouts.items() if isinstance(layout, Layout)}
    by_rows = next((name for name, layout in fixed_layouts.items() if layout.row_axes), "")
    return choose_placement(graph_loop, made.init, made.data[0], target, recipe=recipe, words=words, by_rows=by_rows)


def ask(
    recipe: str,
    words: Sequence[str],
    target: Target,
    *,
    known: Sequence[str] = (),
    layouts: Sequence[str] | None = None,
    meshes: Sequence[str] | None = None,
    mode: str | None = None,
    compiler_options: str | None = None,
) -> Question:
    """Build the search question for a recipe on a target, with all candidates; for the arguments see `choose`.

    Args:
        recipe: the recipe by name or `path/to/file.py:function`.
        words: the recipe's options, as words of a command line.
        target: the hardware.
        known: the command's own options, which a mistyped word may have meant.
        layouts: the layouts to choose from.
        meshes: the meshes to choose from.
        mode: how the step is executed.
        compiler_options: options of the compiler; if None the preset, and the best without it.
    """
    function = find_function(recipe)
    several, fixed = several_values(function, words)
    made = find_recipe(recipe, fixed, known)
    choices = ways_of_layouts(made, target, layouts, meshes)
    given = recipe_arguments(function, recipe, fixed, known)

    DiskCache(cache_folder()).warn_if_read_only()
    step_mode = cast(Mode | None, mode)
    arguments = {**defaults(function), **given}
    with_kernels, by_blocks = (
        Workloads(recipe, fixed, made, arguments, step_mode, kernels) for kernels in (target, None)
    )

    def workload_of(candidate: Candidate) -> Workload:
        # No kernel takes keys and values piece by piece.
        traced = by_blocks if in_pieces(choices.layouts[candidate.layout]) else with_kernels
        return traced(candidate)

    def ways_of(candidate: Candidate, price: Price, tried: Sequence[Candidate]) -> list[WayToFit]:
        layout = choices.layouts[candidate.layout]
        return Changes(
            Candidate(candidate.layout, candidate.mesh),
            plan_of(workload_of(candidate), layout, MeshSpec.parse(candidate.mesh), target),
            step_mode or made.mode,
            recipe,
            (*fixed, *candidate.words),
            target,
            peak=price.peak_bytes,
            capacity=price.room,
            compiler_options=candidate.compiler_options or compiler_options or "preset",
            tried=[replace(each, options=(*given.items(), *each.options)) for each in tried],
        ).that_fit()

    def job_of(candidate: Candidate) -> dict[str, Any]:
        job = Job(
            recipe=recipe,
            words=(*fixed, *candidate.words),
            layout=candidate.layout,
            mesh=candidate.mesh,
            mode=mode,
            compiler_options=candidate.compiler_options or compiler_options or "preset",
            target=str(target),
            parent=os.getpid(),
        )
        return asdict(job)

    def explain_candidate(candidate: Candidate) -> Explanation:
        return explain(_program(Job(**job_of(candidate))), target=target, cache=True)

    return Question(
        recipe=recipe,
        words=tuple(fixed),
        several={name: tuple(values) for name, values in several.items()},
        target=target,
        candidates=tuple(candidates(choices.meshes, option_sets(function, given, several))),
        layouts=choices.layouts,
        workload_of=workload_of,
        command=COMMAND,
        job_of=job_of,
        ways_of=ways_of,
        # Without options of its own there is no program without them.
        compiler_options=compiler_options if target.has_host_memory else "preset",
        explain=explain_candidate if target.is_compile_only else None,
    )


@dataclass(frozen=True)
class Job:
    """One candidate to price, as sent to its process.

    Attributes:
        recipe: the recipe as the user named it.
        words: its options, those of the candidate included.
        layout: the name of one of its layouts, or a TOML file.
        mesh: the mesh as text.
        mode: how the step is executed; the recipe's own if None.
        target: the target as text.
        parent: the process that searches, without which the answer is of no use; None if nobody waits for it.
        compiler_options: options of the compiler: `preset`, `none` or a file of them.
    """

    recipe: str
    words: Sequence[str]
    layout: str
    mesh: str
    mode: str | None
    target: str
    parent: int | None = None
    compiler_options: str = "preset"


def answer(job: Job) -> dict[str, Any]:
    """Return the price of a candidate, or the error that Outlay raises for it."""
    try:
        target = Target.parse(job.target)
        if not target.is_compile_only:
            simulate(target.num_devices)  # before the recipe's file can start JAX with one device
        candidate_price, was_cached = compiled_price(_program(job), target)
    except OutlayError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"price": candidate_price.to_dict(), "was_kept": was_cached}


def _program(job: Job) -> Program:
    prepared = prepare(
        find_recipe(job.recipe, job.words),
        layout=job.layout,
        mesh=job.mesh,
        mode=job.mode,
        target=job.target,
        compiler_options=job.compiler_options,
    )
    return prepared.program


def main() -> None:
    """Answer the job in the last argument; whatever else is printed goes to stderr."""
    job = Job(**json.loads(sys.argv[-1]))
    if job.parent is not None:
        threading.Thread(target=end_with_parent, args=(job.parent,), daemon=True).start()
    answers = os.dup(1)
    os.dup2(2, 1)  # what the user's recipe prints is not an answer
    priced = answer(job)
    with os.fdopen(answers, "w") as out:
        json.dump(priced, out)


def end_with_parent(parent: int) -> None:
    """End this process when its parent is gone: a search that was killed cannot end its processes.

    Args:
        parent: the process that started this one.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
