"""What is wrong with the settings of a Brain and of its modules, each for itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlay.core.errors import Problem
from outlay.core.step_graph import CACHE, INPUTS

if TYPE_CHECKING:
    from outlay.brain.brain import Brain

DTYPES = ("float32", "float16", "bfloat16")


def is_time(value: Any) -> bool:
    """Whether something is a positive, finite time."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def is_shape(value: Any) -> bool:
    """Whether something is a shape of which an array can be made."""
    return isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)


def brain_problems(brain: Brain) -> Iterator[Problem]:
    """What is wrong with dt, dtype, names and the shapes of inputs."""
    if not is_time(brain.dt):
        yield Problem("setting", "dt", f"the time of a step is {brain.dt!r} ms", "a positive number, such as dt = 1.0")
    if brain.dtype not in DTYPES:
        what = f"a Brain does not compute in {brain.dtype!r}"
        yield Problem("setting", "dtype", what, f"one of {', '.join(DTYPES)}")
    if not brain.modules:
        yield Problem("setting", "modules", "there is no module", "at least one")
    for kind, names in (("module", brain.modules), ("input", brain.inputs)):
        for name in names:
            if name in (CACHE, INPUTS) or not name.isidentifier():
                yield Problem(
                    f"{kind} name",
                    repr(name),
                    "names stand in paths such as NAME.soma.potential and NAME:out_spikes, which this one would break",
                    f"letters, digits and underscores, no digit first, and neither {CACHE!r} nor {INPUTS!r}",
                )
    for name, shape in brain.inputs.items():
        if not is_shape(shape):
            yield Problem("input shape", f"{INPUTS}:{name}", f"it is {shape!r}", "positive whole numbers, such as (4,)")


def module_problems(brain: Brain) -> Iterator[tuple[str, list[Problem]]]:
    """What modules say is wrong with their settings, by module; those without a problem are left out."""
    for name, module in brain.modules.items():
        sentences = [sentence.partition("\n") for sentence in module.problems(dt=brain.dt)]
        if sentences:
            yield name, [Problem("setting", name, what, cure or "another value") for what, _, cure in sentences]
