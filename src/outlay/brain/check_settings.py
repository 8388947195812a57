"""What is wrong with the settings of a Brain and of its modules, each for itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlay.core.error_types import Problem
from outlay.graph.step_graph import CACHE, INPUTS

if TYPE_CHECKING:
    from outlay.brain.brain import Brain

DTYPES = ("float32", "float16", "bfloat16")
LARGEST = 3.4e38
"""About the largest number of float32."""
BOUNDS = ("threshold", "min_value", "max_value", "max_clip", "w_max")
"""Settings for which infinity has a meaning: a bound that nothing reaches."""


def is_time(value: Any) -> bool:
    """Whether something is a positive, finite time."""
    return isinstance(value, int | float) and 0 < value < math.inf


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
        said = module.problems(dt=brain.dt)
        also = [each for setting, each in no_numbers(module) if not any(s.startswith(f"{setting} is") for s in said)]
        sentences = [sentence.partition("\n") for sentence in (*said, *also)]
        if sentences:
            yield name, [Problem("setting", name, what, fix or "another value") for what, _, fix in sentences]


def no_numbers(settings: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings that would fill a state with what is no number, each with a sentence.

    Args:
        settings: a module or something within it.
        path: of it, ending with a dot where it is within a module.
    """
    for field in dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ():
        value, name = getattr(settings, field.name), f"{path}{field.name}"
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not (
                abs(number) <= LARGEST or (math.isinf(number) and field.name in BOUNDS)
            ):
                yield name, f"{name} is {value}\na number that float32 holds, up to {LARGEST:g}"
                break
        yield from no_numbers(value, f"{name}.")
