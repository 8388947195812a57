"""Check modules one by one: their names and settings, and what their methods return."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import BrainError, ComponentError, Module, Port, Shape, each_setting, split_message
from outlay.errors import OutlayError, Problem
from outlay.kit import CACHE, INPUTS, counted, did_you_mean, dtype_and_shape, flatten_paths, matches, type_differences

DTYPES = ("float32", "float16", "bfloat16")
LARGEST = 3.4e38
"""Just below the largest float32."""
BOUNDS = ("threshold", "min_value", "max_value", "max_clip", "w_max")
"""Settings that may be infinite, as a bound that nothing reaches."""


def is_time(value: Any) -> bool:
    """Return whether a value is a positive, finite time."""
    return isinstance(value, int | float) and 0 < value < math.inf


def is_shape(value: Any) -> bool:
    """Return whether a value is a shape that an array can have."""
    # Not isinstance: True is an int to Python, and no size.
    return isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)


def brain_problems(
    modules: Mapping[str, Module], inputs: Mapping[str, Shape], dt: float, dtype: str
) -> Iterator[Problem]:
    """Yield the problems of dt, dtype, names and the shapes of inputs."""
    if not is_time(dt):
        yield Problem("setting", "dt", f"the time of a step is {dt!r} ms", "a positive number, such as dt = 1.0")
    if dtype not in DTYPES:
        what = f"a Brain does not compute in {dtype!r}"
        yield Problem("setting", "dtype", what, f"one of {', '.join(DTYPES)}")
    if not modules:
        yield Problem("setting", "modules", "there is no module", "at least one")
    for kind, names in (("module", modules), ("input", inputs)):
        for name in names:
            if name in (CACHE, INPUTS) or not name.isidentifier():
                yield Problem(
                    f"{kind} name",
                    repr(name),
                    "names stand in paths such as NAME.soma.potential and NAME:out_spikes, which this one would break",
                    f"letters, digits and underscores, no digit first, and neither {CACHE!r} nor {INPUTS!r}",
                )
    for name, shape in inputs.items():
        if not is_shape(shape):
            yield Problem("input shape", f"{INPUTS}:{name}", f"it is {shape!r}", "positive whole numbers, such as (4,)")


def module_problems(modules: Mapping[str, Module], dt: float) -> Iterator[tuple[str, list[Problem]]]:
    """Yield each module with invalid settings, and its problems."""
    for name, module in modules.items():
        own = module.problems(dt=dt)
        # A module that says what is wrong with a setting says it better.
        also = [each for setting, each in no_numbers(module) if not any(s.startswith(f"{setting} is") for s in own)]
        sentences = [split_message(sentence) for sentence in (*own, *also)]
        if sentences:
            yield name, [Problem("setting", name, what, fix or "another value") for what, fix in sentences]


def no_numbers(module: Module) -> Iterator[tuple[str, str]]:
    """Yield the path of each setting that would fill a state with NaN or infinity, and a sentence about it."""
    for name, field, value in each_setting(module) if dataclasses.is_dataclass(module) else ():
        numbers = [number for number in (value if isinstance(value, tuple) else (value,)) if isinstance(number, float)]
        may_be_infinite = field.name in BOUNDS
        if any(not abs(number) <= LARGEST and not (math.isinf(number) and may_be_infinite) for number in numbers):
            yield name, f"{name} is {value}\na number that float32 holds, up to {LARGEST:g}"


@contextlib.contextmanager
def naming(name: str, module: Module, method: str) -> Iterator[None]:
    """Add a note with the module to an exception from the module's own code."""
    try:
        yield
    except ComponentError as error:
        raise _refusal(name, module, [(f"{name}.{error.component}", error.what, error.fix)]) from None
    # Other errors of Outlay name the module already.
    except OutlayError:
        raise
    except Exception as error:
        note = f"in {method} of module {name!r}, {type(module).__name__}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def checked_ports(ports: Any) -> Mapping[str, Port]:
    """Return the declared output ports of a module.

    Raises:
        BrainError: the result is not a dictionary of ports, or a shape is invalid.
    """
    example = 'such as {"spikes": Port("spikes", (self.units,))}'
    if not isinstance(ports, Mapping) or not all(isinstance(port, Port) for port in ports.values()):
        raise BrainError(f"outputs returned {ports!r}\n  fix: a Port by name, {example}")
    if unknown := {port: what.kind for port, what in ports.items() if what.kind not in ("spikes", "values")}:
        what = ", ".join(f"{port} {kind!r}" for port, kind in unknown.items())
        raise BrainError(f'outputs returned ports of another kind: {what}\n  fix: "spikes" or "values", {example}')
    wrong = {port: what.shape for port, what in ports.items() if not (what.shape is None or is_shape(what.shape))}
    if wrong:
        what = ", ".join(f"{port} {shape!r}" for port, shape in wrong.items())
        raise BrainError(f"outputs returned what is not a shape: {what}\n  fix: positive whole numbers, {example}")
    return ports


def check_state(name: str, module: Module, state: Any) -> None:
    """Raise if an initial state is not a dictionary of arrays, or lacks a leaf that `by_neuron` names.

    Raises:
        BrainError: the state is invalid; the message lists every problem.
    """
    if not isinstance(state, Mapping):
        what = f"init returned {_kind(state)}"
        raise _refusal(name, module, [(name, what, "a dict of arrays by name, {} for a module without a state")])
    leaves = flatten_paths(state)[0]
    problems = [
        (f"{name}.{path}", f"init made {_kind(leaf)}", "an array, jnp.asarray(...)")
        for path, leaf in leaves
        if not hasattr(leaf, "dtype")
    ]
    paths = [path for path, _ in leaves]
    problems += [
        (name, f"by_neuron names {pattern!r}, and its state has no such leaf", did_you_mean(pattern, paths))
        for pattern in module.by_neuron
        if "*" not in pattern and not any(matches(pattern, path) for path in paths)
    ]
    if problems:
        raise _refusal(name, module, problems)


def checked_step(
    name: str, module: Module, before: Any, returned: Any, ports: Mapping[str, Port]
) -> tuple[Any, dict[str, jax.Array]]:
    """Return the state and the outputs of a step after checking them: a state like the one before, an array per port.

    Raises:
        BrainError: the step returned something else; the message lists every problem.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        what = f"step returned {_kind(returned)}"
        raise _refusal(name, module, [(name, what, "return state, outputs: a new state, and an array by port")])
    after, outputs = returned
    problems = [
        *_lost(name, before, after),
        *(
            (f"{name}:{port}", "step returned nothing for it", f'"{port}" among the outputs that step returns')
            for port in ports
            if port not in outputs
        ),
        *(
            (f"{name}:{port}", "step returned it, and outputs does not name it", did_you_mean(port, ports))
            for port in outputs
            if port not in ports
        ),
    ]
    arrays = {}
    for port in ports:
        if port not in outputs:
            continue
        try:
            arrays[port] = jnp.asarray(outputs[port])
        except (TypeError, ValueError):
            problems.append((f"{name}:{port}", f"step returned {_kind(outputs[port])}", "an array"))
    rows = _num_rows(module, before)
    for port, array in arrays.items():
        shape = ports[port].shape or ()
        # By rows, a device computes some of the neurons, and its step returns as many.
        expected = (rows, *shape[1:]) if shape and rows is not None and rows <= shape[0] else shape
        if ports[port].kind == "spikes" and not (array.dtype == jnp.bool_ or jnp.issubdtype(array.dtype, jnp.integer)):
            what = f"step returned {array.dtype}, and spikes are 1, 0, or -1 of an inhibitory neuron"
            fix = 'bool or int8, such as potential > threshold; or Port("values", ...) for numbers'
            problems.append((f"{name}:{port}", what, fix))
        if array.shape != expected:
            what = f"step returned shape {array.shape}, and outputs says {shape}"
            problems.append((f"{name}:{port}", what, f"an array of shape {shape}, or a Port of the shape it has"))
    if problems:
        raise _refusal(name, module, problems)
    return after, arrays


def _num_rows(module: Module, state: Any) -> int | None:
    """Count the neurons that a step computes: all, or one device's."""
    for path, leaf in flatten_paths(state)[0]:
        if leaf.ndim and any(matches(pattern, path) for pattern in module.by_neuron):
            return leaf.shape[0]
    return None


def _lost(name: str, before: Any, after: Any) -> list[tuple[str, str, str]]:
    """List the leaves of the state that a step dropped, added, or returned with another shape or dtype."""
    fix = "every leaf with its shape and dtype: {**state, ...}, and x.astype(old.dtype) where it changed"
    return [
        (f"{name}.{path}", f"step took {old or 'nothing'} and returned {new or 'nothing'}", fix)
        for path, old, new in type_differences(before, after, _type)
    ]


def _type(leaf: Any) -> str:
    return dtype_and_shape(leaf) if hasattr(leaf, "dtype") else _kind(leaf)


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _refusal(name: str, module: Module, problems: list[tuple[str, str, str]]) -> BrainError:
    head = (
        f"module {name!r}, {type(module).__name__}, does not do what a Brain needs: {counted(len(problems), 'problem')}"
    )
    return BrainError(head, [Problem("module", *problem) for problem in problems])
