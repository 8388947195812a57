"""Find the part of a graph that differs first, and whether it depends on rows that are not its own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from outlay.analysis.verify.host import by_path, default_kind, typed
from outlay.analysis.verify.runs import Leaves
from outlay.analysis.verify.sides import OneDevice, as_planned, as_tree
from outlay.core.paths import map_with_paths, split_path
from outlay.core.quantities import listed
from outlay.graph.graph_loop import GraphLoop, count_steps
from outlay.graph.step_graph import CACHE, SharedStep, StepGraph
from outlay.program.program import Program

_MAX_STEPS = 256
_ROUNDED = 1e-4
"""Fewer rows may round otherwise, since another program computes them."""


def parts_that_differ(program: Program, state: Leaves, inputs: Any) -> list[str]:
    """Return the parts of a graph that differ first, in words; step by step, from the same state.

    Parts only read what others produced in earlier steps. So after a single step from the same state, a difference is
    that of the part in which it shows.

    Args:
        program: the program of a graph loop.
        state: the leaves of the state before it, on the host.
        inputs: the inputs of all its steps, on the host.
    """
    graph, shapes = program.step.graph, program.state_shapes
    first = as_tree(program, state)
    single = program.with_step(GraphLoop(graph), lambda key: typed(first, shapes), _of_step(inputs, 0))
    (run, _), reference = as_planned(single), OneDevice(single)
    state = reference.start(default_kind(None))
    for step in range(min(count_steps(inputs), _MAX_STEPS)):
        now = _of_step(inputs, step)
        got, right = (one(state, now) for one in (run, reference.variant.run))
        parts = _differing(got.state, right.state)
        if parts:
            before = typed(as_tree(program, state), shapes)
            by_rows = () if program.device_groups else [name for name in parts if graph.parts[name].by_rows]
            return [
                _part_words(
                    name, leaves, step, _depends_on_other_rows(graph, name, before, now) if name in by_rows else None
                )
                for name, leaves in parts.items()
            ]
        state = right.state
    return []


def _of_step(inputs: Any, step: int) -> Any:
    return jax.tree.map(lambda x: x[step : step + 1], inputs)


def _differing(got: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Return the leaves that differ, by part; a part's outputs count as its leaves."""
    differing: dict[str, list[str]] = {}
    for path, leaf in right.items():
        if not np.array_equal(got[path], leaf, equal_nan=np.issubdtype(leaf.dtype, np.inexact)):
            first, *rest = split_path(path)
            differing.setdefault(rest[0] if first == CACHE else first, []).append(path)
    return differing


def _depends_on_other_rows(graph: StepGraph, name: str, state: Any, inputs: Any) -> bool | None:
    """Return whether the last half of a part's rows alone, on one device, gives other numbers; None if not known.

    Not the first half: the first numbers that a key draws are often the same, however many are drawn.
    """
    part = graph.parts[name]
    if isinstance(part.step, SharedStep):
        return None
    step = part.step
    try:
        read = graph.read(name, state[CACHE], jax.tree.map(lambda x: x[0], inputs))
        num = next(leaf.shape[0] for path, leaf in by_path(state[name]).items() if part.has_rows(path)) // 2
        half = map_with_paths(lambda path, x: x[-num:] if part.has_rows(path) else x, state[name])
        (own, ports), (own_of_half, ports_of_half) = (jax.jit(step)(own, read) for own in (state[name], half))
    except Exception:  # a part may refuse fewer rows; then this cannot be tried
        return None
    has_rows = {path: leaf for path, leaf in by_path(own).items() if part.has_rows(path)}
    some = by_path(own_of_half)
    pairs = [(leaf, some[path]) for path, leaf in has_rows.items()]
    pairs += [(leaf, ports_of_half[port]) for port, leaf in ports.items()]
    return not all(_alike(np.asarray(whole)[-num:], np.asarray(rows)) for whole, rows in pairs)


def _alike(whole: np.ndarray, rows: np.ndarray) -> bool:
    if whole.shape != rows.shape or not np.issubdtype(whole.dtype, np.inexact):
        return np.array_equal(whole, rows)
    return np.allclose(whole, rows, rtol=_ROUNDED, atol=_ROUNDED * np.abs(whole).max(initial=0.0), equal_nan=True)


def _part_words(name: str, leaves: list[str], step: int, depends_on_others: bool | None) -> str:
    what = (
        f"{name!r} is the first to differ, in step {step + 1} of the graph loop, from the same state and inputs: "
        f"{listed(leaves, 4)}"
    )
    if depends_on_others is None:
        return what
    if not depends_on_others:
        return (
            f"{what}. On one device half of its rows alone give what all rows give, so its own step is not the reason"
        )
    return (
        f"{what}. On one device half of its rows alone give other numbers than all rows do, though it is marked as "
        "working on some rows as on all (by_rows): random numbers must be drawn for each row by the row's number "
        "(jax.random.fold_in), and nothing may be summed over its rows. Fix that, or take it out of the split with an "
        "empty by_rows"
    )
