"""Compile the steps of graph parts that share devices, and dispatch all such groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.put import put
from outlay.arrays.shardings import part_of
from outlay.core.jax_compat import copy_to
from outlay.core.paths import map_with_paths
from outlay.graph.encoding import Encoding
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS, StepGraph
from outlay.graph.subgraph import Subgraph
from outlay.program.process_exchange import ProcessExchange


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """Parts on the same devices: one program, which may run several steps per dispatch.

    Attributes:
        subgraph: the parts.
        devices: where they run.
        rows: how they are split, where the devices are several.
        state: their part of the state as shapes, by name, and the whole cache of the graph.
        inputs: the inputs that they read, as shapes.
        num_steps: the number of steps of a graph loop.
    """

    subgraph: Subgraph
    devices: tuple[jax.Device, ...]
    rows: Rows | None
    state: Any
    inputs: Any
    num_steps: int

    @property
    def names(self) -> tuple[str, ...]:
        """The parts."""
        return self.subgraph.names

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that run them; the first one tells the others what came out."""
        return tuple(dict.fromkeys(device.process_index for device in self.devices))

    @property
    def is_here(self) -> bool:
        """Whether this process runs them, or a piece of them."""
        return jax.process_index() in self.processes

    def spread(self, x: Any) -> jax.Array:
        """Put what every process has, such as an input, on all devices of the group."""
        return jax.device_put(x, self.whole) if self.whole.is_fully_addressable else put(x, self.whole)

    def elsewhere(self) -> Any:
        """Return their part of the state as another process sees it: arrays without a local shard."""
        return jax.tree.map(
            lambda like: jax.make_array_from_single_device_arrays(like.shape, like.sharding, [], dtype=like.dtype),
            self._typed(self._own_state, self._specs(self._own_state)),
        )

    def result_shapes(self) -> tuple[Any, Any]:
        """Return the shapes of what the epilogue returns."""
        rest = jax.eval_shape(self.prologue(), self._own_state)
        return jax.eval_shape(self.epilogue(), self._own(self._own_state), rest)

    @functools.cached_property
    def foreign(self) -> tuple[tuple[str, str], ...]:
        """Return what they read from parts in other groups, as (part, port)."""
        sources = self.subgraph.graph.sources(self.names)
        return tuple(dict.fromkeys((s.part, s.port) for s in sources if s.part not in (*self.names, INPUTS)))

    @functools.cached_property
    def whole(self) -> jax.sharding.Sharding:
        """Return the sharding of an array that is replicated over the group's devices."""
        if len(self.devices) == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(part_of(self.devices), P())

    def init(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the compiled init of these parts alone."""

        def own_state(key: Any) -> Any:
            # XLA removes what only the other parts need.
            return self.rows.init(make, key, self._of_parts) if self.rows else self._of_parts(make(key))

        return jax.jit(
            self._mapped(own_state, (P(),), self._specs(self._own_state)),
            out_shardings=jax.tree.map(self._at, self._specs(self._own_state)),
        )

    def prologue(self) -> Callable[[Any], Any]:
        """Return the function that initializes the carry of the loop, without state and cache."""

        def blank(state: Any) -> Any:
            return _rest(self.subgraph.init_carry(state, self.num_steps))

        mapped = self._mapped(blank, (self._specs(self._own_state),), self._rest_specs)
        return jax.jit(mapped, out_shardings=None if self.rows else self.whole)

    def steps(self, num_steps: int) -> jax.stages.Lowered:
        """Lower this many steps as one dispatch: (own, rest, cache, foreign, inputs) -> (own, rest, cache).

        State and recorded outputs are donated; the cache is not, since a copy of it to another group may be pending.
        """

        def run(own: Any, rest: Any, cache: Any, foreign: Any, inputs: Any) -> Any:
            carry = self.subgraph.run({"own": own, "cache": cache, **rest}, foreign, inputs, num_steps)
            return carry["own"], _rest(carry), carry["cache"]

        own, own_specs = self._own(self._own_state), self._own(self._specs(self._own_state))
        mapped = self._mapped(run, (own_specs, self._rest_specs, P(), P(), P()), (own_specs, self._rest_specs, P()))
        rest = jax.eval_shape(self.prologue(), self._own_state)
        foreign = self.foreign_of(self.state[CACHE])
        shapes = [
            self._typed(own, own_specs),
            self._typed(rest, self._rest_specs),
            *(
                self._typed(tree, jax.tree.map(lambda _: P(), tree))
                for tree in (self._own_state[CACHE], foreign, self.inputs)
            ),
        ]
        return jax.jit(mapped, donate_argnums=(0, 1)).lower(*shapes)

    def epilogue(self, *, is_sent: bool = False) -> Callable[[Any, Any], Any]:
        """Return the final check, which also crops padded rows: (own, rest) -> (buffers, not finite).

        Args:
            is_sent: other processes get the result: each device then has all of it, also of what was recorded by rows.
        """
        subgraph = self.subgraph

        def look(own: Any, rest: Any) -> Any:
            return subgraph.finish_carry({"own": own, **rest}, self.num_steps)["not_finite"]

        looked = self._mapped(look, (self._own(self._specs(self._own_state)), self._rest_specs), P())

        def end(own: Any, rest: Any) -> Any:
            buffers = rest["buffers"]
            if self.rows:
                buffers = self.rows.crop_buffers(subgraph.recorded_outputs, buffers)
            return buffers, looked(own, rest)

        return jax.jit(end, out_shardings=self.whole if is_sent else None)

    def compile_prologue_epilogue(self, *, is_sent: bool = False) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        """Compile the prologue and the epilogue of a call."""
        own_state = self._typed(self._own_state, self._specs(self._own_state))
        rest = self._typed(jax.eval_shape(self.prologue(), self._own_state), self._rest_specs)
        return self.prologue().lower(own_state).compile(), self.epilogue(is_sent=is_sent).lower(
            self._own(own_state), rest
        ).compile()

    def foreign_of(self, cache: Any) -> dict[str, dict[str, Any]]:
        """Select from the cache of a graph what these parts read from others."""
        read: dict[str, dict[str, Any]] = {}
        for part, port in self.foreign:
            read.setdefault(part, {})[port] = cache[part][port]
        return read

    @functools.cached_property
    def _own_state(self) -> Any:
        return self._of_parts(self.state)

    def _of_parts(self, state: Any) -> Any:
        return self._own(state) | {CACHE: self._own(state[CACHE])}

    def _own(self, by_part: Any) -> dict[str, Any]:
        return {name: by_part[name] for name in self.names}

    def _specs(self, state: Any) -> Any:
        return map_with_paths(lambda path, _: self.rows.spec(path) if self.rows else P(), state)

    @functools.cached_property
    def _rest_specs(self) -> Any:
        buffer_specs = {
            one.key: self.rows.buffer_spec(one) if self.rows else P() for one in self.subgraph.recorded_outputs
        }
        return {"not_finite": dict.fromkeys(self.names, P()), "buffers": buffer_specs, "step": P()}

    def _typed(self, tree: Any, specs: Any) -> Any:
        """Return shapes with shardings."""
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._at(spec)), tree, specs
        )

    def _at(self, spec: P) -> jax.sharding.Sharding:
        return NamedSharding(part_of(self.devices), spec) if self.rows else self.whole

    def _mapped(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        if not self.rows:
            return function
        mesh = part_of(self.devices)
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _rest(carry: Any) -> Any:
    return {key: carry[key] for key in ("not_finite", "buffers", "step")}


@dataclass(frozen=True)
class Route:
    """What is sent after each dispatch from one group to one device.

    Attributes:
        part, port: what it is.
        origin, target: the numbers of the groups.
        device: where to.
    """

    part: str
    port: str
    origin: int
    target: int
    device: jax.Device


def routes(groups: Sequence[DeviceGroup]) -> list[Route]:
    """List all transfers: only outputs that another group reads, and only to the devices that read them."""
    home = {name: number for number, group in enumerate(groups) for name in group.names}
    return [
        Route(part, port, home[part], target, device)
        for target, group in enumerate(groups)
        for part, port in group.foreign
        for device in group.devices
    ]


class Dispatch:
    """Dispatches the steps of all groups without waiting: each group runs ahead as far as its inputs allow.

    Args:
        groups: the groups.
        programs: for each number of dispatches in a row, the program of each group.
        exchange: where several processes run the groups, what sends outputs from one to another.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        programs: Sequence[tuple[int, Sequence[Any]]],
        exchange: ProcessExchange | None = None,
    ) -> None:
        self.groups = groups
        self.programs = programs
        self.exchange = exchange
        here = jax.process_index()
        self.routes = [route for route in routes(groups) if exchange is None or route.device.process_index == here]
        self._here = [number for number, group in enumerate(groups) if group.is_here or exchange is None]
        self._devices = [route.device for route in self.routes]
        self._is_simple = all(len(group.devices) == 1 for group in groups)

    def __call__(self, own: list[Any], rest: list[Any], caches: list[Any], inputs: Sequence[Any]) -> None:
        """Run all steps; state, recorded outputs and caches are replaced in their lists."""
        numbers = self._here
        foreign: list[dict[str, dict[str, Any]]] = [{part: {} for part, _ in group.foreign} for group in self.groups]
        slots = [(foreign[route.target][route.part], route.port) for route in self.routes]
        sources = [(route.origin, route.part, route.port) for route in self.routes]
        for num, programs in self.programs:
            for _ in range(num):
                if self.exchange is not None:
                    self._send(self._with_received(caches, self.exchange), foreign)
                elif self._is_simple:
                    # jax.device_put would spend several times as long in Python on each array.
                    sent = copy_to([caches[origin][part][port] for origin, part, port in sources], self._devices)
                    for (slot, port), array in zip(slots, sent, strict=True):
                        slot[port] = array
                else:
                    self._send(caches, foreign)
                for i in numbers:
                    own[i], rest[i], caches[i] = programs[i](own[i], rest[i], caches[i], foreign[i], inputs[i])

    def _with_received(self, caches: list[Any], exchange: ProcessExchange) -> list[Any]:
        """Return the caches with what groups of other processes sent."""
        own = {
            (number, part, port): array
            for number in self._here
            for part, ports in caches[number].items()
            for port, array in ports.items()
        }
        known = list(caches)
        for name, array in exchange(own).items():
            number, part, port = cast(tuple[int, str, str], name)
            if number not in self._here:
                cache = known[number]
                known[number] = {**cache, part: {**cache[part], port: array}}
        return known

    def _send(self, caches: list[Any], foreign: list[dict[str, dict[str, Any]]]) -> None:
        """Send where some group has several devices: what is sent is replicated over them before and after."""
        values = [caches[route.origin][route.part][route.port].addressable_data(0) for route in self.routes]
        pieces: dict[tuple[int, str, str], list[jax.Array]] = {}
        for route, array in zip(self.routes, copy_to(values, self._devices), strict=True):
            pieces.setdefault((route.target, route.part, route.port), []).append(array)
        for (target, part, port), arrays in pieces.items():
            group = self.groups[target]
            whole = arrays[0].shape
            foreign[target][part][port] = (
                arrays[0]
                if len(group.devices) == 1
                else jax.make_array_from_single_device_arrays(whole, group.whole, arrays)
            )


def sent_between_processes(
    groups: Sequence[DeviceGroup], graph: StepGraph, cache: Any
) -> dict[int, dict[Hashable, tuple[jax.ShapeDtypeStruct, Encoding]]]:
    """Return what each process sends after a dispatch: outputs that are read in processes that do not have them.

    Args:
        groups: the groups.
        graph: the graph.
        cache: the cache of the graph, as shapes.
    """
    home = {name: number for number, group in enumerate(groups) for name in group.names}
    sent: dict[int, dict[Hashable, tuple[jax.ShapeDtypeStruct, Encoding]]] = {}
    for group in groups:
        for part, port in group.foreign:
            origin = home[part]
            if not set(group.processes) <= set(groups[origin].processes):
                item = cache[part][port], graph.parts[part].encoding(port)
                sent.setdefault(groups[origin].processes[0], {})[origin, part, port] = item
    return sent


def split_state(state: Any, groups: Sequence[DeviceGroup]) -> tuple[list[Any], list[Any]]:
    """Split a state into each group's own parts and each group's cache."""
    own = [{name: state[name] for name in group.names} for group in groups]
    return own, [{name: state[CACHE][name] for name in group.names} for group in groups]


def joined(own: Sequence[Any], caches: Sequence[Any]) -> Any:
    """Join what `split_state` split."""
    parts = {name: part for one in own for name, part in one.items()}
    return {**parts, CACHE: {name: ports for cache in caches for name, ports in cache.items()}}
