"""Compile the calls of each place of a pipeline for the devices of its stage, and run them there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.program.passes import Planned
from outlay.program.pipelines.pipelined_function import sample_axes
from outlay.program.stages.scheduled_run import Values
from outlay.program.stages.stage_calls import CALLS_OF, CalledStages, sum_shapes, zeros
from outlay.program.stages.stage_meshes import is_here, of_a_stage, seen_on, stage_meshes, without_axis
from outlay.program.stages.staged_loss import StagedLoss

if TYPE_CHECKING:
    from outlay.program.stages.stage_exchange import StageExchange


class StagePrograms:
    """The programs of all stages.

    Args:
        loss: the loss as places.
        planned: the program.
        axis: the mesh axis of the stages.
    """

    def __init__(self, loss: StagedLoss, planned: Planned, axis: str) -> None:
        self._planned, self._axis, self._mesh = planned, axis, planned.mesh
        self._stages = stage_meshes(planned.mesh, axis)
        abstract = self._stages[0].abstract_mesh
        functions = [
            each.meant_for(of_a_stage(each.forward, abstract), of_a_stage(each.backward, abstract))
            for each in loss.functions
        ]
        self.loss = replace(loss, functions=tuple(functions))

    @functools.cached_property
    def layer_specs(self) -> list[P]:
        """How layers are split: over the stages, and as the layout splits the leaf that they are made of."""
        return [
            P(self._axis) if dims is None else P(self._axis, *without_axis(dims, self._axis)[1:])
            for dims in self.loss.layer_dims
        ]

    def _specs_in_pieces(self, num_pieces: int) -> list[P]:
        """Return the same for each array of layers, as stages are given them."""
        return [spec for spec in self.layer_specs for _ in range(num_pieces)]

    @functools.cached_property
    def shared_specs(self) -> dict[int, P]:
        """How each shared parameter is split over the devices of a stage, by its number."""
        first, plan = len(self.loss.consts), self._planned.plan
        return {n: without_axis(plan[self.loss.paths[n - first]].dims, self._axis) for n in self.loss.shared}

    @functools.cached_property
    def sample_specs(self) -> list[P]:
        """How each leaf of the samples is split."""
        leaves, axes = jax.tree.leaves(self.loss.sample_shapes), sample_axes(self._planned)
        sizes = [x.shape[0] for x in leaves if x.shape]
        return [P(axes) if axes and x.shape[:1] == (sizes[0],) else P() for x in leaves]

    @functools.cached_property
    def moving_specs(self) -> list[P]:
        """How what moves from place to place is split: its samples, as the batch is."""
        axes = sample_axes(self._planned)
        return [P() if dim is None or not axes else P(*[None] * dim, axes) for dim in self.loss.cut.moving_dims()]

    def shardings_of_handed(self, handed: Any) -> Any:
        """Return where what the stages are handed lives, on all devices."""
        layers, _, consts, parts = handed
        on_all = functools.partial(NamedSharding, self._mesh)
        return (
            [[on_all(spec) for spec in self._specs_in_pieces(self.loss.cut.most_pieces)] for _ in layers],
            [on_all(self.shared_specs[number]) for number in self.loss.shared],
            [on_all(P()) for _ in consts],
            [[on_all(spec) for spec in self.sample_specs] for _ in parts],
        )

    @functools.cached_property
    def sums_of_all(self) -> tuple[list[list[Any]], list[Any]]:
        """The sums of all stages as one, as shapes on all devices; see `StageSums`."""
        layers, common = sum_shapes(self.loss)
        num = len(self._stages)

        def whole(x: Any, spec: P) -> jax.ShapeDtypeStruct:
            shape = (num * x.shape[0], *x.shape[1:])
            return jax.ShapeDtypeStruct(shape, x.dtype, sharding=NamedSharding(self._mesh, spec))

        each = [whole(*pair) for pair in zip(layers, self.layer_specs, strict=True)]
        repeats = self.loss.schedule.num_repeats
        return [list(each) for _ in range(repeats)], [
            whole(*pair) for pair in zip(common, self._common_specs, strict=True)
        ]

    @property
    def _common_specs(self) -> list[P]:
        num_totals = len(jax.tree.leaves(self.loss.results[1]))
        return [*(P(self._axis, *spec) for spec in self.shared_specs.values()), *[P(self._axis)] * num_totals]

    def _on(self, place: int) -> Callable[[P], NamedSharding]:
        return functools.partial(NamedSharding, self._stages[place % len(self._stages)])

    @functools.cached_property
    def arguments_at(self) -> list[list[NamedSharding]]:
        """Where each place takes its arguments, before what moves."""
        return [self._arguments_at(place) for place in range(len(self.loss.functions))]

    def _arguments_at(self, place: int) -> list[NamedSharding]:
        taken, on = self.loss.functions[place].taken, self._on(place)
        others = [P()] * self.loss.first_sample + self.sample_specs
        own = self._specs_in_pieces(self.loss.cut.num_pieces(place))
        specs = [*own, *(self.shared_specs[number] for number in taken.shared)]
        return [*map(on, specs), *(on(others[number]) for number in taken.others)]

    def moving_at(self, place: int, *, back: bool = False) -> list[NamedSharding]:
        """Return where a place takes what moves to it; or back to it, from the one after."""
        if place == 0 and not back:
            return []
        before = self.loss.functions[place if back else place - 1]
        specs = [*map(self._on(place), self.moving_specs)]
        if not back:
            return specs
        return [spec for spec, x in zip(specs, before.moved, strict=True) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def lower(self, lowered: dict[Any, Any], compiled: dict[Any, Any], compiles: Callable[[Any], Any]) -> None:
        """Lower the calls of all places, by their names and places; compile each one that hands values on.

        Args:
            lowered: takes what is lowered.
            compiled: takes what is compiled.
            compiles: the compiler.
        """
        _layers, _common = sum_shapes(self.loss)
        for stage in self.own_stages:
            on = self._on(stage)
            at = [[on(spec) for spec in self.layer_specs] for _ in range(self.loss.schedule.num_repeats)]
            made = jax.jit(
                lambda: (zeros(self.loss).layers, zeros(self.loss).common),
                out_shardings=(at, [*map(on, self._common_specs)]),
            )
            lowered["zeros", stage] = made.lower()
        for place, count in enumerate(self.loss.cut.counts):
            if self.runs(place) and count < self.loss.cut.most_layers and not self.loss.cut.unrolled:
                at = [*map(self._on(place), self.layer_specs)]
                first = functools.partial(jax.tree.map, lambda x, count=count: x[:count])
                sums_and_layers = zip(_layers, self.loss.cut.scanned_layers, strict=True)  # of the same shapes
                own = [jax.ShapeDtypeStruct(x.shape, var.aval.dtype) for x, var in sums_and_layers]
                lowered["take", place] = jax.jit(first, in_shardings=(at,), out_shardings=at).lower(own)
        for place in range(len(self.loss.functions)):
            kinds = {
                action.kind
                for action in self.loss.schedule.actions
                if action.repeat * len(self._stages) + action.stage == place
            }
            if self.runs(place):
                self._lower_place(place, kinds, lowered, compiled, compiles)
        lowered |= {name: exchange.lower() for name, exchange in self.exchanges.items()}

    def runs(self, place: int) -> bool:
        """Return whether this process has devices of the stage of a place."""
        return place % len(self._stages) in self.own_stages

    @functools.cached_property
    def own_stages(self) -> list[int]:
        """The stages of this process; of a mesh that is compile-only, all."""
        return [number for number, mesh in enumerate(self._stages) if jax.process_count() == 1 or is_here(mesh.devices)]

    @functools.cached_property
    def exchanges(self) -> dict[tuple[str, int], StageExchange]:
        """What moves between stages of different processes, by its direction and where it goes."""
        exchanges, num = {}, len(self._stages)
        for before in range(len(self.loss.functions) - 1):
            both = [self._stages[place % num].devices for place in (before, before + 1)]
            spans = len({device.process_index for devices in both for device in devices.flat}) > 1
            if spans and (self.runs(before) or self.runs(before + 1)):
                from outlay.program.stages.stage_exchange import StageExchange

                moved = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self.loss.functions[before].moved]
                back = [x for x in moved if jnp.issubdtype(x.dtype, jnp.inexact)]
                for name, source, target, shapes in (
                    ("on", before, before + 1, moved),
                    ("back", before + 1, before, back),
                ):
                    at = self.moving_at(target, back=name == "back")
                    exchanges[name, target] = StageExchange(
                        self._mesh, self._axis, source % num, target % num, shapes, at
                    )
        return exchanges

    def _lower_place(
        self, place: int, kinds: set[str], lowered: dict[Any, Any], compiled: dict[Any, Any], compiles: Any
    ) -> None:
        function, on = self.loss.functions[place], self._on(place)
        layers, common = sum_shapes(self.loss)
        num = len(self.loss.shared)
        totals = common[num:] if function.is_last else []
        at_totals = [on(P(self._axis))] * len(totals)
        in_front = (1,) if self.loss.cut.unrolled else ()
        values = [
            jax.ShapeDtypeStruct((*in_front, *x.shape) if number < function.num_layers else x.shape, x.dtype)
            for number, x in enumerate(function.forward.in_avals)
        ]
        at_values = [*self.arguments_at[place], *self.moving_at(place)]
        at_moved = [] if function.is_last else [*map(on, self.moving_specs)]

        def lower(name: str, arguments: Any, at: Any, at_results: Any, donated: tuple[int, ...]) -> Any:
            call = functools.partial(CALLS_OF[name], self.loss, place)
            jitted = jax.jit(call, in_shardings=at, out_shardings=at_results, donate_argnums=donated)
            lowered[name, place] = jitted.lower(*arguments)
            return lowered[name, place]

        first = lower("forward", (values, totals), (at_values, at_totals), (at_moved, None, at_totals), (1,))
        compiled["forward", place] = compiles(first)
        at_residuals = compiled["forward", place].output_shardings[1]
        held = [*(values[number] for number in function.held), *function.residuals]
        at_held = [*(at_values[number] for number in function.held), *at_residuals]
        back, at_back = function.sent_back, [] if function.is_last else self.moving_at(place, back=True)
        at_given = [at for at, one in zip(self.moving_at(place), function.is_moved_back, strict=True) if one]
        numbers = [self.loss.shared.index(number) for number in function.taken.shared]
        sums = layers, [common[number] for number in numbers]
        at_sums = [*map(on, self.layer_specs)], [on(self._common_specs[number]) for number in numbers]
        if "backward" in kinds:
            lower("backward", (held, back, *sums), (at_held, at_back, *at_sums), (at_given, *at_sums), (2, 3))
        if "inputs" in kinds:
            half = lower("inputs", (held, back), (at_held, at_back), (at_given, None), ())
            compiled["inputs", place] = compiles(half)
            handed = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in half.out_info[1]]
            at_handed = compiled["inputs", place].output_shardings[1]
            arguments = (held, back, handed, *sums), (at_held, at_back, at_handed, *at_sums)
            lower("weights", *arguments, at_sums, (3, 4))

    def on_devices(self, compiled: dict[Any, Any], layers: Any, shared: Values, consts: Values, parts: Any) -> Any:
        """Return the stages, which compute with these values of a call on their devices."""
        return _OnDevices(self, compiled, layers, shared, consts, parts)


class _OnDevices(CalledStages):
    """Runs the programs of stages, each on its devices."""

    def __init__(
        self, programs: StagePrograms, compiled: dict[Any, Any], layers: Any, shared: Values, consts: Values, parts: Any
    ) -> None:
        super().__init__(programs.loss)
        self._programs, self._compiled, self._parts = programs, compiled, parts
        self._layers = layers
        self._values = dict(zip(programs.loss.shared, shared, strict=True))
        self._values |= zip(programs.loss.others, consts, strict=True)
        self._seen: dict[Any, jax.Array] = {}
        self._own_layers: dict[int, Values] = {}

    def runs(self, stage: int) -> bool:
        """Return whether this process has devices of a stage."""
        return self._programs.runs(stage)

    def arguments(self, place: int, part: int) -> Values:
        """Return what a place takes for its forward pass, before what moves, as its devices have it already."""
        loss, stage, first = self._loss, place % self._loss.schedule.num_stages, self._loss.first_sample
        function, layers = loss.functions[place], self._layers_of(place)
        taken, at = function.taken, self._programs.arguments_at[place][len(layers) :]
        names = [("value", 0, number) for number in (*taken.shared, *(n for n in taken.others if n < first))]
        names += [("sample", part, number - first) for number in taken.others if number >= first]
        return [*layers, *(self._on_stage(name, stage, sharding) for name, sharding in zip(names, at, strict=True))]

    def _layers_of(self, place: int) -> Values:
        """Return the layers of a place on its devices; where the largest place has more, they are copied."""
        if place in self._own_layers:
            return self._own_layers[place]
        loss = self._loss
        cut = loss.cut
        size, at = cut.most_layers // cut.most_pieces, self._programs.arguments_at[place]
        of_repeat = self._layers[place // loss.schedule.num_stages]
        whole = [of_repeat[number] for number in loss.pieces[place]]
        layers = [seen_on(x, where, (size, *x.shape[1:])) for x, where in zip(whole, at, strict=False)]
        if ("take", place) in self._compiled:
            layers = self._compiled["take", place](layers)
        self._own_layers[place] = layers
        return layers

    def _on_stage(self, name: tuple[str, int, int], stage: int, sharding: NamedSharding) -> jax.Array:
        if (name, stage) not in self._seen:
            kind, of, number = name
            x = self._parts[of][number] if kind == "sample" else self._values[number]
            self._seen[name, stage] = seen_on(x, sharding, x.shape)
        return self._seen[name, stage]

    def call(self, name: str, place: int, *values: Any) -> Any:
        """Run one of a place's calls."""
        return self._compiled[name, place](*values)

    def send(self, values: Values, place: int, *, back: bool) -> Values:
        """Send values to the devices of a place; together with the process that has them, or takes them."""
        name = ("back" if back else "on", place)
        if name in self._programs.exchanges:
            return self._programs.exchanges[name](self._compiled[name], values)
        return jax.device_put(values, self._programs.moving_at(place, back=back)) if values else []
