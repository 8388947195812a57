"""Graphs of step functions that read each other's previous outputs.

In every step each part reads earlier outputs from a cache, and the graph's own inputs of this step; then all new
outputs enter the cache together. So the parts of one step do not depend on each other: they may run in any order, in
one program or on one device each, and the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import jax
import jax.numpy as jnp

from outlay.core.error_types import ProgramError
from outlay.core.one_line import OneLine
from outlay.core.paths import matches
from outlay.graph.encoding import Encoding

INPUTS = "inputs"
"""The name that stands for the graph's own inputs as the part of a `Source`."""
CACHE = "cache"
"""Where the state holds the outputs that others read in the next step: `cache.PART.PORT`."""

Read = dict[str, tuple[jax.Array, ...]]
"""What a part reads in a step: by input, the outputs that arrive there."""
PartStep = Callable[[Any, Read], tuple[Any, dict[str, jax.Array]]]


@dataclass(frozen=True)
class Source:
    """What a part reads.

    Attributes:
        part: the name of the part that produces it, or `INPUTS`.
        port: the name of the output, or of the input.
        latency: the number of steps from producing to reading it, at least 1; inputs are read in their own step.
    """

    part: str
    port: str
    latency: int = 1

    def __str__(self) -> str:
        return f"{self.part}:{self.port}"


@dataclass(frozen=True)
class SharedStep(OneLine):
    """A step of a part of whose work some is done together with that of other parts: in one call for all of them.

    What comes before and what comes after it are compiled each for itself, and cost a copy of each array that goes
    through them as it is. So each function returns only what it changes: a dictionary like the state, without the rest.

    Attributes:
        before: `before(state, read) -> (changes, (passed, request))`: what is passed on to `after`, and what to do in
            the common call.
        together: the common call, `together({part: (state, request)}) -> {part: (changes, answer)}`; parts for which it
            is the same function share a call.
        after: `after(state, (passed, answer)) -> (changes, outputs)`.
    """

    before: Callable[[Any, Read], tuple[Any, tuple[Any, Any]]]
    together: Callable[[dict[str, tuple[Any, Any]]], dict[str, tuple[Any, Any]]]
    after: Callable[[Any, tuple[Any, Any]], tuple[Any, dict[str, jax.Array]]]


@dataclass(frozen=True)
class LoopForm(OneLine):
    """Another form in which the state of a part goes through many steps, such as one that defers work to the next step.

    What is seen of a part's state (before and after a loop, and what is recorded) is its own form always.

    Attributes:
        begin: the state as it goes through the loop, of the part's own.
        step: a step of that; else as `Part.step`.
        end: the part's own state, of the one in the loop.
        checked: the leaves of the state in the loop that must be finite.
    """

    begin: Callable[[Any], Any]
    step: PartStep | SharedStep
    end: Callable[[Any], Any]
    checked: Callable[[Any], Any] = lambda state: state


@dataclass(frozen=True)
class RowStep(OneLine):
    """A step that must do for some of its rows what it does for all.

    Attributes:
        name: what it is the step of, for messages.
        step: `step(state, given)`; it is only traced.
        state: shapes and dtypes of the state.
        given: shapes and dtypes of what else it takes.
        by_rows: patterns of the leaves of the state whose first dim counts the rows.
        given_has_rows: whether the first dim of what else it takes does, too.
        rows: what the rows are, in words.
    """

    name: str
    step: Callable[[Any, Any], Any]
    state: Any
    given: Any
    by_rows: tuple[str, ...]
    given_has_rows: bool = False
    rows: str = "rows"


@dataclass(frozen=True)
class Part(OneLine):
    """One step function of a graph.

    Attributes:
        step: `step(state, read) -> (state, outputs)`; `read[port]` has one array per source, `outputs[port]` is one
            array.
        reads: the sources of each port.
        by_rows: patterns of the leaves of its state whose first dim is also that of all its outputs, and whose step
            works as well on some of these rows as on all; empty for a part that only works as a whole.
        loop_form: of a state, as it is traced, the form in which it goes through a loop; None for its own.
        encodings: how an output goes from device to device where its rows are exchanged, by port: `"ternary"`, two bits
            an entry, for one whose entries are -1, 0 and 1 only (others would arrive changed); every other port
            `"whole"`, each bit of it.
        row_steps: what of its step is checked, where a layout splits its rows, for doing for some rows what it does for
            all; None for nothing.

    Raises:
        ProgramError: an encoding is unknown.
    """

    step: PartStep
    reads: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    by_rows: tuple[str, ...] = ()
    loop_form: Callable[[Any], LoopForm | None] | None = None
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    row_steps: Callable[[], Sequence[RowStep]] | None = None

    def __post_init__(self) -> None:
        unknown = {port: encoding for port, encoding in self.encodings.items() if encoding not in get_args(Encoding)}
        if unknown:
            listed = ", ".join(f"{port}: {encoding!r}" for port, encoding in unknown.items())
            raise ProgramError(
                f"Part.encodings names no encoding for {listed}\n"
                f"  fix: one of {', '.join(map(repr, get_args(Encoding)))}"
            )

    def encoding(self, port: str) -> Encoding:
        """Return how an output goes from device to device."""
        return self.encodings.get(port, "whole")

    @property
    def sources(self) -> list[Source]:
        """The sources of all its ports."""
        return [source for sources in self.reads.values() for source in sources]

    def has_rows(self, path: str) -> bool:
        """Return whether the leaf of its state at this path is split when it runs by rows."""
        return any(matches(pattern, path) for pattern in self.by_rows)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: jax.jit needs a hash
class StepGraph(OneLine):
    """Parts that read each other's previous outputs; itself a step, `graph(state, inputs) -> (state, outputs)`.

    The state is a dictionary: each part's own state under its name, and the cache under `cache`.

    Attributes:
        parts: the parts by name.
        outputs: what the graph returns of each step, by name, as (part, port).

    Example:
        >>> ping = Part(lambda state, read: (state, {"out": read["in"][0] + 1}), {"in": (Source("pong", "out"),)})
        >>> pong = Part(lambda state, read: (state, {"out": read["in"][0] * 2}), {"in": (Source("ping", "out"),)})
        >>> graph = StepGraph({"ping": ping, "pong": pong}, {"seen": ("pong", "out")})
        >>> state = {"ping": {}, "pong": {}, "cache": {"ping": {"out": jnp.ones(())}, "pong": {"out": jnp.zeros(())}}}
        >>> state, outputs = graph(state, {})
        >>> float(state["cache"]["ping"]["out"]), float(outputs["seen"])
        (1.0, 2.0)
    """

    parts: Mapping[str, Part]
    outputs: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __call__(self, state: Any, inputs: Any) -> tuple[Any, dict[str, jax.Array]]:
        """Run one step of all parts."""
        cache, after, produced = state[CACHE], {}, {}
        for name, part in self.parts.items():
            after[name], produced[name] = isolated(part.step, state[name], self.read(name, cache, inputs))
        after[CACHE] = {name: self.push(name, cache[name], outputs) for name, outputs in produced.items()}
        return after, {name: produced[part][port] for name, (part, port) in self.outputs.items()}

    def read(self, name: str, cache: Any, inputs: Any) -> Read:
        """Return what a part reads in this step."""
        return {
            port: tuple(self._value(source, cache, inputs) for source in sources)
            for port, sources in self.parts[name].reads.items()
        }

    def push(self, name: str, cached: Mapping[str, jax.Array], outputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Return the cache of one part after a step: as many values as its readers are behind, newest first."""
        return {
            port: jnp.concatenate([value[None], cached[port][:-1]]) if self.depth(name, port) > 1 else value
            for port, value in outputs.items()
        }

    def init_cache(self, shapes: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]) -> dict[str, dict[str, jax.Array]]:
        """Return the cache before the first step: zeros in the shape of every output of every part."""

        def zeros(name: str, port: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
            depth = self.depth(name, port)
            return jnp.zeros((depth, *shape.shape) if depth > 1 else shape.shape, shape.dtype)

        return {
            name: {port: zeros(name, port, shape) for port, shape in ports.items()} for name, ports in shapes.items()
        }

    def depth(self, name: str, port: str) -> int:
        """Return how many past values of an output its readers need."""
        sources = self.sources(self.parts)
        return max((source.latency for source in sources if (source.part, source.port) == (name, port)), default=1)

    def sources(self, names: Iterable[str]) -> list[Source]:
        """Return every source that one of these parts reads."""
        return [source for name in names for source in self.parts[name].sources]

    def _value(self, source: Source, cache: Any, inputs: Any) -> jax.Array:
        if source.part == INPUTS:
            return inputs[source.port]
        return self.cached_value(source.part, source.port, cache[source.part][source.port], source.latency)

    def cached_value(self, name: str, port: str, cached: jax.Array, latency: int = 1) -> jax.Array:
        """Return an output of some steps ago from its entry of the cache, which has a dim of steps only if needed."""
        return cached[latency - 1] if self.depth(name, port) > 1 else cached


def isolated(function: Callable[[Any, Any], tuple[Any, Any]], state: Any, given: Any) -> tuple[Any, Any]:
    """Call a function of a state so that it rounds as if it were compiled in a program of its own.

    Fused with its surroundings, it may round differently: which product and sum become one operation depends on
    what they are fused with.

    Args:
        function: returns what it changes of the state, or all of it, and something else.
        state: the state.
        given: what else it is called with.
    """
    state, given = jax.lax.optimization_barrier((state, given))
    shapes: list[tuple[Any, Any]] = []

    def traced(state: Any, given: Any) -> tuple[Any, Any]:
        result = function(state, given)
        shapes.append(jax.tree.map(_shape, result))
        return result

    def instead(state: Any, given: Any) -> tuple[Any, Any]:
        # cond traces this branch second: no need to trace the function for its shapes alone.
        changes, other = shapes[-1]
        # What is there already needs no memory of its own.
        before = changed_part(state, changes)
        is_like_before = changes == jax.tree.map(_shape, before)  # if not, whoever runs the graph raises
        return before if is_like_before else _zeros(changes), _zeros(other)

    # XLA's CPU compiler drops optimization barriers before it fuses (up to JAX 0.10), but it never fuses into a branch.
    # Until then the inner barrier keeps it from folding the constant condition.
    return jax.lax.optimization_barrier(jax.lax.cond(jax.lax.optimization_barrier(True), traced, instead, state, given))


def changed_part(state: Any, changes: Any) -> Any:
    """Return the sub-tree of a state that the changes cover."""
    if not (isinstance(changes, dict) and isinstance(state, dict)):
        return state
    return {name: changed_part(state[name], change) for name, change in changes.items() if name in state}


def with_changes(state: Any, changes: Any) -> Any:
    """Return a state with some changes."""
    if not (isinstance(changes, dict) and isinstance(state, dict)):
        return changes
    return {**state, **{name: with_changes(state.get(name), change) for name, change in changes.items()}}


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
