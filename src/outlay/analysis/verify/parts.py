"""Which part of a graph does not compute on some of its rows, or on its own device, what it computes as a whole.

Parts read only what others made in earlier steps. So after a single step from the same state whatever differs is the
doing of the part that it belongs to, and the first such step names the parts to blame.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from outlay.analysis.verify.host import by_path, typed
from outlay.analysis.verify.runs import laid_out, one_device
from outlay.core.paths import split_path
from outlay.graph.rollout import Rollout, count_steps
from outlay.graph.step_graph import CACHE
from outlay.program.program import Program

_MAX_STEPS = 256


def parts_that_differ(program: Program, state: Any, inputs: Any) -> list[str]:
    """The parts of a rollout that come out different first, in words; one step at a time, from the same state.

    Args:
        program: of a rollout.
        state: the state before it, on the host.
        inputs: of all its steps, on the host.
    """
    graph, shapes = program.step.graph, program.state_shapes
    single = Program(
        Rollout(graph),
        lambda key: typed(state, shapes),
        _of_step(inputs, 0),
        program.layout,
        program.mesh,
        program.mode,
    )
    (run, _), reference = laid_out(single), one_device(single)
    for step in range(min(count_steps(inputs), _MAX_STEPS)):
        got, right = (one(state, _of_step(inputs, step)) for one in (run, reference.run))
        parts = _differing(by_path(got.state), by_path(right.state))
        if parts:
            return [
                _words(name, leaves, step, graph.parts[name].by_rows if not program.places else ())
                for name, leaves in parts.items()
            ]
        state = right.state
    return []


def _of_step(inputs: Any, step: int) -> Any:
    return jax.tree.map(lambda x: x[step : step + 1], inputs)


def _differing(got: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """The leaves that differ, by the part whose they are; what it puts out is its own too."""
    found: dict[str, list[str]] = {}
    for path, leaf in right.items():
        if not np.array_equal(got[path], leaf, equal_nan=np.issubdtype(leaf.dtype, np.inexact)):
            first, *rest = split_path(path)
            found.setdefault(rest[0] if first == CACHE else first, []).append(path)
    return found


def _words(name: str, leaves: list[str], step: int, by_rows: tuple[str, ...]) -> str:
    first = f"{name!r} is the first to differ, in step {step + 1} of the rollout, from the same state and inputs: "
    what = f"{first}{', '.join(leaves[:4])}{f' and {len(leaves) - 4} more' if len(leaves) > 4 else ''}. "
    if not by_rows:
        return f"{what}It computes something else on its devices than in one program"
    return (
        f"{what}It says that it works on some of its rows as on all, and does not: random numbers must be drawn for "
        "each row by the row's number (jax.random.fold_in), not for the shape of all rows, and nothing may be summed "
        "over its rows. Fix that, or leave it out of the split: an empty by_rows"
    )
