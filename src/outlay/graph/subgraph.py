"""Some parts of a graph that run together, on one device or on the same devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.paths import flatten_paths
from outlay.graph.encoding import num_words, pack, unpack
from outlay.graph.recorded_outputs import Buffers, RecordedOutput, check_addresses, empty, keep, values_of
from outlay.graph.step_graph import (
    CACHE,
    INPUTS,
    LoopForm,
    PartStep,
    Read,
    SharedStep,
    StepGraph,
    isolated,
    with_changes,
)

Carry = dict[str, Any]
"""What a loop carries: `own` (state by part), `cache`, `not_finite` (by part; in the loop one array for all parts),
`buffers` (what is recorded) and `step`."""


@dataclass(frozen=True)
class Subgraph:
    """Parts of a graph whose steps are one loop.

    Attributes:
        graph: the whole graph.
        names: the parts.
        recorded_outputs: what is recorded of their steps.
        num_rows: the total number of rows of each part that is split by rows.
        axis: the mesh axis over which these rows are split.
        loop_forms: the loop forms of the parts whose states have another form within the loop.
    """

    graph: StepGraph
    names: tuple[str, ...]
    recorded_outputs: tuple[RecordedOutput, ...] = ()
    num_rows: Mapping[str, int] = field(default_factory=dict)
    axis: str = ""
    loop_forms: Mapping[str, LoopForm] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """Steps between two exchanges of rows: the smallest latency with which a part here reads rows."""
        sources = self.graph.sources(self.names)
        return min((source.latency for source in sources if source.part in self.num_rows), default=0)

    def run_alone(self, state: Any, inputs: Any, num_steps: int) -> tuple[Any, Buffers, dict[str, Any]]:
        """Run all steps of a graph whose parts are all here; return the state, what was recorded, and `not_finite`."""
        carry = self.finish_carry(self.run(self.init_carry(state, num_steps), {}, inputs, num_steps), num_steps)
        return {**carry["own"], CACHE: carry["cache"]}, carry["buffers"], carry["not_finite"]

    def init_carry(self, state: Any, num_steps: int) -> Carry:
        """Return the carry of the loop before the first step.

        Raises:
            ProgramError: an address to keep names nothing.
        """
        own = {name: state[name] for name in self.names}
        cache = {name: state[CACHE][name] for name in self.names}
        values = jax.eval_shape(lambda own, cache: values_of(own, self._like_produced(own, cache)), own, cache)
        check_addresses(self.recorded_outputs, values)
        never = {name: jnp.full((), NEVER, jnp.int32) for name in self.names}
        buffers = empty(self.recorded_outputs, values, num_steps)
        return {"own": own, "cache": cache, "not_finite": never, "buffers": buffers, "step": jnp.zeros((), jnp.int32)}

    def run(self, carry: Carry, foreign: Any, inputs: Any, num_steps: int) -> Carry:
        """Run some steps.

        Args:
            carry: the carry after the steps before.
            foreign: the caches of other subgraphs' ports that these parts read, as before the first of these steps;
                they must hold enough for all of them.
            inputs: the inputs of all steps of the graph loop.
            num_steps: how many steps.
        """
        if not self.names:  # a graph without parts
            return carry
        own = carry["own"]
        forms = {name: make(own[name]) for name in self.names if (make := self.graph.parts[name].loop_form)}
        inside = dataclasses.replace(self, loop_forms={name: form for name, form in forms.items() if form})
        begun = {name: form.begin(own[name]) for name, form in inside.loop_forms.items()}
        never = jnp.stack([carry["not_finite"][name] for name in self.names])
        after = inside._loop(({**carry, "own": own | begun, "not_finite": never}, foreign), inputs, num_steps)[0]
        first = dict(zip(self.names, after["not_finite"], strict=True))
        return {**after, "own": inside._own(after["own"]), "not_finite": first}

    def _loop(self, both: tuple[Carry, Any], inputs: Any, num_steps: int) -> tuple[Carry, Any]:
        """Run all steps, with states in the form of the loop."""
        if not self.block:
            return _repeat(lambda both: self._steps(both, inputs, 1), both, num_steps)
        both = _repeat(lambda both: self._steps(both, inputs, self.block), both, num_steps // self.block)
        # Fewer steps than between two exchanges may be left at the end.
        rest = num_steps % self.block
        return self._steps(both, inputs, rest) if rest else both

    def _own(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts' own states from those in the loop."""
        return {**states, **{name: form.end(states[name]) for name, form in self.loop_forms.items()}}

    def _step_of(self, name: str) -> PartStep | SharedStep:
        form = self.loop_forms.get(name)
        return form.step if form else self.graph.parts[name].step

    def _checked(self, name: str, state: Any) -> Any:
        form = self.loop_forms.get(name)
        return form.checked(state) if form else state

    def finish_carry(self, carry: Carry, num_steps: int) -> Carry:
        """Return the carry after the last step, with the checks that are made only then."""
        own = carry["own"]
        first = {name: seen_at_the_end(carry["not_finite"][name], own[name], num_steps) for name in self.names}
        # Each device has looked at its own rows only.
        for name in self.num_rows:
            first[name] = over_devices(first[name], self.axis)
        return {**carry, "not_finite": first}

    def _steps(self, both: tuple[Carry, Any], inputs: Any, num_steps: int) -> tuple[Carry, Any]:
        """Run steps that end with one exchange of rows."""

        def one(both: tuple[Carry, Any], _: None = None) -> tuple[tuple[Carry, Any], Any]:
            return self._step(*both, inputs)

        if num_steps == 1:
            after, rows = one(both)
            rows = jax.tree.map(lambda x: x[None], rows)
        else:
            after, rows = jax.lax.scan(one, both, None, length=num_steps)
        if not self.num_rows:
            return after
        num_rows = {name: dict.fromkeys(ports, self.num_rows[name]) for name, ports in rows.items()}
        encodings = {name: {port: self.graph.parts[name].encoding(port) for port in rows[name]} for name in rows}
        whole = exchange_rows(rows, num_rows, encodings, self.axis)
        before = both[0]["cache"]
        cache = after[0]["cache"] | {name: self._pushed(name, before[name], ports) for name, ports in whole.items()}
        return {**after[0], "cache": cache}, after[1]

    def _step(self, carry: Carry, foreign: Any, inputs: Any) -> tuple[tuple[Carry, Any], Any]:
        """Run one step; outputs with rows are returned separately, since nobody can read them before the exchange."""
        step, cache = carry["step"], {**foreign, **carry["cache"]}
        now = {name: jax.lax.dynamic_index_in_dim(inputs[name], step, 0, keepdims=False) for name in self.inputs}
        own, produced = self._advanced(carry["own"], {name: self.graph.read(name, cache, now) for name in self.names})
        after = {
            "own": own,
            "cache": {name: self._next(name, cache[name], produced[name]) for name in self.names},
            "not_finite": first_seen(
                carry["not_finite"], [(self._checked(name, own[name]), produced[name]) for name in self.names], step
            ),
            "buffers": keep(self.recorded_outputs, carry["buffers"], lambda: values_of(self._own(own), produced), step),
            "step": step + 1,
        }
        aged = {name: self._aged(name, ports) for name, ports in foreign.items()}
        return (after, aged), {name: produced[name] for name in self.num_rows}

    def _advanced(self, own: Any, read: Mapping[str, Read]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state and the outputs of each part after a step."""
        after, produced, passed = {}, {}, {}
        shared: dict[Any, dict[str, Any]] = {}
        for name in self.names:
            step = self._step_of(name)
            if isinstance(step, SharedStep):
                changes, (passed[name], request) = isolated(step.before, own[name], read[name])
                after[name] = with_changes(own[name], changes)
                shared.setdefault(step.together, {})[name] = after[name], request
            else:
                after[name], produced[name] = isolated(step, own[name], read[name])
        for together, requests in shared.items():
            for name, (changes, answer) in together(requests).items():
                step = self._step_of(name)
                assert isinstance(step, SharedStep)
                state = with_changes(after[name], changes)
                changes, produced[name] = isolated(step.after, state, (passed[name], answer))
                after[name] = with_changes(state, changes)
        return {name: after[name] for name in self.names}, {name: produced[name] for name in self.names}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the graph that these parts read."""
        sources = self.graph.sources(self.names)
        return tuple(dict.fromkeys(source.port for source in sources if source.part == INPUTS))

    def _next(self, name: str, cached: Any, produced: Any) -> Any:
        return self._aged(name, cached) if name in self.num_rows else self.graph.push(name, cached, produced)

    def _aged(self, name: str, cached: Any) -> Any:
        """Return a cache one step later, when its newest entry is not known here; nobody here reads it so soon."""
        newest = {port: self.graph.cached_value(name, port, x) for port, x in cached.items()}
        return self.graph.push(name, cached, newest)

    def _pushed(self, name: str, cached: Any, produced: Any) -> Any:
        """Return a cache after several steps, whose outputs are all known."""

        def push(port: str, values: jax.Array) -> jax.Array:
            depth = self.graph.depth(name, port)
            return jnp.concatenate([values[::-1], cached[port]])[:depth] if depth > 1 else values[-1]

        return {port: push(port, values) for port, values in produced.items()}

    def _like_produced(self, own: Any, cache: Any) -> Any:
        """Return arrays like the outputs of the parts, with as many rows as this device has."""

        def like(name: str, port: str, cached: jax.Array) -> jax.Array:
            newest = self.graph.cached_value(name, port, cached)
            if name not in self.num_rows:
                return newest
            leaves, part = flatten_paths(own[name])[0], self.graph.parts[name]
            num_rows = next(leaf.shape[0] for path, leaf in leaves if part.has_rows(path))
            return jnp.zeros((num_rows, *newest.shape[1:]), newest.dtype)

        return {name: {port: like(name, port, x) for port, x in cache[name].items()} for name in self.names}


def _repeat(function: Callable[[Any], Any], carry: Any, num: int) -> Any:
    if num <= 1:
        return function(carry) if num else carry
    return jax.lax.scan(lambda carry, _: (function(carry), None), carry, None, length=num)[0]


NEVER = -1
_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def first_seen(before: jax.Array, values: Sequence[tuple[Any, Any]], step: jax.Array) -> jax.Array:
    """Return the step at which each part was first not finite, or -1, after one more step.

    Outputs are checked, and leaves of at most one dim; reading a kernel in every step would cost too much.

    Args:
        before: the same before the step, (part,).
        values: the state and the outputs of each part after the step.
        step: the number of the step.
    """
    bad = jnp.stack([_bad_lanes(_every_step(own, outputs)) for own, outputs in values])
    return jnp.where((before == NEVER) & jnp.any(bad, axis=1), jnp.asarray(step, jnp.int32), before)


def _every_step(own: Any, outputs: Any) -> list[jax.Array]:
    small = [leaf for leaf in jax.tree.leaves((own, outputs)) if jnp.ndim(leaf) <= 1]
    return [*small, *(leaf for leaf in jax.tree.leaves(outputs) if jnp.ndim(leaf) > 1)]


def seen_at_the_end(before: jax.Array, own: Any, num_steps: int) -> jax.Array:
    """Return the same of one part after the last step, when leaves with more dims are checked too."""
    bad = jnp.any(_bad_lanes([leaf for leaf in jax.tree.leaves(own) if jnp.ndim(leaf) > 1]))
    return jnp.where((before == NEVER) & bad, jnp.asarray(num_steps - 1, jnp.int32), before)


def over_devices(first: jax.Array, axis: str) -> jax.Array:
    """Return the first step at which any device saw it, when each device has some rows of a part."""
    latest = jnp.iinfo(jnp.int32).max
    earliest = jax.lax.pmin(jnp.where(first == NEVER, latest, first), axis)
    return jnp.where(earliest == latest, NEVER, earliest)


_LANES = 16


def _bad_lanes(leaves: list[Any]) -> jax.Array:
    """Return in a few lanes whether entries of some arrays are not finite.

    The bits without the sign are compared as integers, which is faster: infinities and NaNs have the largest. Arrays of
    one size are compared with each other first. That and the lanes keep the operations few: in a short step each costs
    more than what it computes.
    """
    alike: dict[Any, list[jax.Array]] = {}
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            alike.setdefault((leaf.dtype, leaf.size), []).append(leaf.reshape(-1))
    lanes = jnp.zeros(_LANES, bool)
    for (dtype, size), arrays in alike.items():
        unsigned = _BITS[dtype.itemsize]
        infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, dtype), unsigned)
        magnitude = jnp.asarray(jnp.iinfo(unsigned).max >> 1, unsigned)
        largest = functools.reduce(
            jnp.maximum, [jax.lax.bitcast_convert_type(array, unsigned) & magnitude for array in arrays]
        )
        by_lane = jnp.pad(largest, (0, -size % _LANES)).reshape(-1, _LANES)
        lanes |= by_lane.max(axis=0) >= infinity
    return lanes


def exchange_rows(pieces: Any, num_rows: Any, encodings: Any, axis: str) -> Any:
    """All-gather rows inside `jax.shard_map`.

    Args:
        pieces: a tree of (steps, rows, ...): this device's rows, in the order of the devices.
        num_rows: a tree of the same structure with the total number of rows; rows beyond it are padding and left out.
        encodings: a tree of the same structure with how each array is encoded on its way.
        axis: the mesh axis over which the rows are split.
    """
    leaves, structure = jax.tree.flatten(pieces)
    if not leaves:
        return pieces
    likes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    encoded = list(zip(likes, jax.tree.leaves(encodings), strict=True))
    # All arrays are packed into one, so that there is one collective for all of them.
    packed = [pack(leaf, encoding) for leaf, (_, encoding) in zip(leaves, encoded, strict=True)]
    words = jax.lax.all_gather(jnp.concatenate(packed), axis)
    whole, start = [], 0
    for (like, encoding), num in zip(encoded, jax.tree.leaves(num_rows), strict=True):
        stop = start + num_words(like, encoding)
        rows = jax.vmap(lambda w, like=like, encoding=encoding: unpack(w, like, encoding))(words[:, start:stop])
        whole.append(_side_by_side(rows)[:, :num])
        start = stop
    return structure.unflatten(whole)


def _side_by_side(rows: jax.Array) -> jax.Array:
    """Reshape (devices, steps, rows, ...) to (steps, devices * rows, ...)."""
    by_step = jnp.swapaxes(rows, 0, 1)
    return by_step.reshape(by_step.shape[0], -1, *by_step.shape[3:])
