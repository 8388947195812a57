"""The parts of a graph that share a place: the program of their steps, and what makes and ends their state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.shardings import part_of
from outlay.core.paths import map_with_paths
from outlay.graph.rows import Rows
from outlay.graph.section import Section
from outlay.graph.step_graph import CACHE, INPUTS


@dataclass(frozen=True, eq=False)
class Place:
    """Parts on the same devices: one program, of which several steps may be one dispatch.

    Attributes:
        section: the parts.
        devices: where they run.
        rows: how they are split, where the devices are several.
        state: their part of the state as shapes, by name, and the whole cache of the graph.
        inputs: the inputs that they read, as shapes.
        num_steps: of a rollout.
    """

    section: Section
    devices: tuple[jax.Device, ...]
    rows: Rows | None
    state: Any
    inputs: Any
    num_steps: int

    @property
    def names(self) -> tuple[str, ...]:
        """The parts."""
        return self.section.names

    @functools.cached_property
    def foreign(self) -> tuple[tuple[str, str], ...]:
        """What they read of parts elsewhere, as (part, port)."""
        reads = [source for name in self.names for of in self.section.graph.parts[name].reads.values() for source in of]
        return tuple(dict.fromkeys((s.part, s.port) for s in reads if s.part not in (*self.names, INPUTS)))

    @functools.cached_property
    def whole(self) -> jax.sharding.Sharding:
        """Where an array is that all its devices hold."""
        if len(self.devices) == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(part_of(self.devices), P())

    def init(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What makes the state of these parts here, and nothing of the others."""

        def mine(key: Any) -> Any:
            state = make(key)
            state = self._only(state)
            return self.rows.piece(self.rows.pad(jax.lax.optimization_barrier(state))) if self.rows else state

        return jax.jit(
            self._mapped(mine, (P(),), self._specs(self._only(self.state))),
            out_shardings=self._out(self._only(self.state)),
        )

    def begin(self) -> Callable[[Any], Any]:
        """What makes all that the loop carries besides state and cache."""

        def blank(state: Any) -> Any:
            return _rest(self.section.begin(state, self.num_steps))

        mapped = self._mapped(blank, (self._specs(self._only(self.state)),), self._rest_specs)
        return jax.jit(mapped, out_shardings=None if self.rows else self.whole)

    def steps(self, num_steps: int) -> jax.stages.Lowered:
        """So many steps in one dispatch: (own, rest, cache, foreign, inputs) -> (own, rest, cache).

        State and what is kept become the new ones in place; the cache does not, since it may still be on its way.
        """

        def run(own: Any, rest: Any, cache: Any, foreign: Any, inputs: Any) -> Any:
            carry = self.section.run({"own": own, "cache": cache, **rest}, foreign, inputs, num_steps)
            return carry["own"], _rest(carry), carry["cache"]

        mine = self._only(self.state)
        own, cache = {name: mine[name] for name in self.names}, mine[CACHE]
        specs = self._specs(mine)
        own_specs = {name: specs[name] for name in self.names}
        mapped = self._mapped(run, (own_specs, self._rest_specs, P(), P(), P()), (own_specs, self._rest_specs, P()))
        rest = jax.eval_shape(self.begin(), mine)
        foreign = self.foreign_of(self.state[CACHE])
        shapes = [
            self._typed(own, own_specs),
            self._typed(rest, self._rest_specs),
            *(self._typed(tree, jax.tree.map(lambda _: P(), tree)) for tree in (cache, foreign, self.inputs)),
        ]
        return jax.jit(mapped, donate_argnums=(0, 1)).lower(*shapes)

    def end(self) -> Callable[[Any, Any], Any]:
        """What looks at everything once more, and cuts off rows that fill up: (own, rest) -> (kept, not finite)."""
        section = self.section

        def look(own: Any, rest: Any) -> Any:
            return section.end({"own": own, **rest}, self.num_steps)["not_finite"]

        mine = self._specs(self._only(self.state))
        looked = self._mapped(look, ({name: mine[name] for name in self.names}, self._rest_specs), P())

        def end(own: Any, rest: Any) -> Any:
            kept = self.rows.crop_kept(section.kept, rest["kept"]) if self.rows else rest["kept"]
            return kept, looked(own, rest)

        return jax.jit(end)

    def ends(self) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        """What begins a call and what ends it, compiled."""
        mine = self._only(self.state)
        mine, rest = self._typed(mine, self._specs(mine)), jax.eval_shape(self.begin(), mine)
        own = {name: mine[name] for name in self.names}
        return self.begin().lower(mine).compile(), self.end().lower(own, self._typed(rest, self._rest_specs)).compile()

    def foreign_of(self, cache: Any) -> dict[str, dict[str, Any]]:
        """Of the cache of a graph what these parts read of others."""
        found: dict[str, dict[str, Any]] = {}
        for part, port in self.foreign:
            found.setdefault(part, {})[port] = cache[part][port]
        return found

    def _only(self, state: Any) -> Any:
        return {name: state[name] for name in self.names} | {CACHE: {name: state[CACHE][name] for name in self.names}}

    def _specs(self, state: Any) -> Any:
        return map_with_paths(lambda path, _: self.rows.spec(path) if self.rows else P(), state)

    @functools.cached_property
    def _rest_specs(self) -> Any:
        kept = {one.key: self.rows.kept_spec(one) if self.rows else P() for one in self.section.kept}
        return {"not_finite": dict.fromkeys(self.names, P()), "kept": kept, "step": P()}

    def _typed(self, tree: Any, specs: Any) -> Any:
        """Shapes that say where they are."""
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._at(spec)), tree, specs
        )

    def _at(self, spec: P) -> jax.sharding.Sharding:
        return NamedSharding(part_of(self.devices), spec) if self.rows else self.whole

    def _out(self, state: Any) -> Any:
        return jax.tree.map(self._at, self._specs(state))

    def _mapped(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        if not self.rows:
            return function
        mesh = part_of(self.devices)
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _rest(carry: Any) -> Any:
    return {key: carry[key] for key in ("not_finite", "kept", "step")}
