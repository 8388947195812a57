"""Run layers as a pipeline inside one compiled program: a circular schedule over the stages of a mesh axis.

All stages are one computation, mapped over a leading dim that is split over the axis (`jax.vmap`), so that XLA still
places everything else, over the other axes too. In each tick every stage runs its layers on one microbatch, and then
all results move on by one stage, the last one's to the first: one permute of neighbours, and its transpose in the
backward pass. With repeats, each stage has several groups of layers, and microbatches go round as often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from outlay.program.pipelines.layers_in_place import is_without_gradient, sums_of
from outlay.program.place_inside import Place


@dataclass(frozen=True)
class CircularSchedule:
    """How many of what run in a pipeline.

    Attributes:
        num_stages: groups of devices, each with layers of its own.
        num_microbatches: equal parts of the batch.
        num_repeats: how often a microbatch goes round, through other layers each time.
        num_layers: layers in all.

    >>> schedule = CircularSchedule(num_stages=4, num_microbatches=8, num_repeats=2, num_layers=16)
    >>> schedule.num_ticks, schedule.layers_at_once, round(schedule.bubble, 3)
    (19, 2, 0.158)
    """

    num_stages: int
    num_microbatches: int
    num_repeats: int
    num_layers: int

    @property
    def num_ticks(self) -> int:
        """Rounds in which every stage runs its layers once."""
        return self.num_microbatches * self.num_repeats + self.num_stages - 1

    @property
    def layers_at_once(self) -> int:
        """Layers that a stage runs in a tick."""
        return self.num_layers // (self.num_stages * self.num_repeats)

    @property
    def bubble(self) -> float:
        """The share of ticks in which a stage has nothing to do."""
        return (self.num_stages - 1) / self.num_ticks


@dataclass(frozen=True)
class Operands:
    """What a pipeline computes from.

    Attributes:
        shared: values that all layers and microbatches take.
        shared_samples: such, each with the microbatches in front (M, ...).
        layers: stacks of what each layer takes (L, ...).
        layer_samples: such, each with the microbatches behind the layers (L, M, ...).
        carried: what goes from layer to layer (M, ...).
        carried_dims: for each of these, which dim behind the microbatches holds samples.
        sample_axes: the mesh axes that split samples.
        part_axes: the mesh axes whose devices each add up the gradients of their own part of the batch.
        num_parts: for each of the layers, their number; 1 where its gradients are added up as a whole.
        in_place: which of the layers are all of a stage's, and read where they are used (`layers_in_place.py`).
        sums: for each of the layers, what their gradient is added to there; None where by JAX, or where there is none.
        first_layer: the place of the first of the layers among all layers of a stage.
    """

    shared: Sequence[Any]
    shared_samples: Sequence[Any]
    layers: Sequence[Any]
    layer_samples: Sequence[Any]
    carried: Sequence[Any]
    carried_dims: Sequence[int] = ()
    sample_axes: tuple[str, ...] = ()
    part_axes: tuple[str, ...] = ()
    num_parts: Sequence[int] = ()
    in_place: Sequence[bool] = ()
    sums: Sequence[Any | None] = ()
    first_layer: Any = 0


_PARTS = 3
"""The dim of sums that holds their parts: behind the stages, the repeats and the layers that run at once."""

Layers = Callable[[Operands], tuple[list[Any], list[Any], list[Any]]]
"""Runs some layers on one microbatch: returns what they carry on, what each returns besides, and the sums."""


def run_circular(
    schedule: CircularSchedule, axis: str, run: Layers, of: Operands, place: Place, *, unrolled: bool = False
) -> tuple[list[Any], list[Any]]:
    """Run all layers on all microbatches.

    Args:
        schedule: how many of what.
        axis: the mesh axis of the stages.
        run: runs one stage's layers in one tick. Its operands have no dim for microbatches, and as many layers as a
            stage runs at once.
        of: the operands.
        place: constrains where values live.
        unrolled: whether `run` takes its layers as a list for each stack, and has no loop over them.

    Returns:
        What the last layer carries on, (M, ...), and what each layer returns besides, (L, M, ...).
    """
    stages, micro = schedule.num_stages, schedule.num_microbatches
    numbers = jnp.arange(stages)

    def at_stages(x: jax.Array) -> jax.Array:
        return place(x, P(axis))

    def copied(x: jax.Array) -> jax.Array:
        return at_stages(jnp.broadcast_to(x[None], (stages, *x.shape)))

    def at_parts(sums: jax.Array | None, num: int) -> jax.Array | None:
        """Split sums over stages, and their parts over the devices of the batch."""
        if sums is None or num == 1:
            return None if sums is None else at_stages(sums)
        return place(sums, P(axis, *[P.UNCONSTRAINED] * (_PARTS - 1), of.part_axes))

    # A copy for each stage, so that gradients of what all stages share are summed once, and not in every tick.
    shared, shared_samples = [*map(copied, of.shared)], [*map(copied, of.shared_samples)]
    layers, layer_samples = (
        [_by_stage(x, schedule, at_stages) for x in each] for each in (of.layers, of.layer_samples)
    )
    in_place = [_is_float(x) and not unrolled for x in layers]
    num_parts = of.num_parts or [1] * len(layers)
    sums = [
        at_parts(sums_of(x, num, _PARTS) if one and _has_gradient(x) else None, num)
        for x, one, num in zip(layers, in_place, num_parts, strict=True)
    ]
    layers = [
        jax.lax.stop_gradient(x) if one or not _has_gradient(x) else x for x, one in zip(layers, in_place, strict=True)
    ]
    of_stages = [None if x is None else x.shape for x in sums]
    layers = [[*map(at_stages, _by_layer_at_once(x))] if unrolled else x for x in layers]
    # Only the first stage's copy is read: there microbatches enter, and come back to. Each device writes its own.
    waiting = [*map(copied, of.carried)]

    def spread(values: Sequence[jax.Array], num_dims: int = 1) -> list[jax.Array]:
        """Split values over stages, and their samples, behind so many dims, over the axes of samples."""
        open_dim, axes = P.UNCONSTRAINED, of.sample_axes or P.UNCONSTRAINED
        return [
            place(x, P(axis, *[open_dim] * (num_dims - 1 + dim), axes))
            for x, dim in zip(values, of.carried_dims, strict=True)
        ]

    def stage(operands: Any, repeat: jax.Array, microbatch: jax.Array) -> tuple[list[Any], list[Any], list[Any]]:
        shared, shared_samples, layers, layer_samples, carried, sums = operands
        return run(
            Operands(
                shared,
                [x[microbatch] for x in shared_samples],
                [_own(x, repeat, unrolled=unrolled, in_place=one) for x, one in zip(layers, in_place, strict=True)],
                [_at(x, repeat)[:, microbatch] for x in layer_samples],
                carried,
                in_place=in_place,
                sums=[None if x is None else x.reshape(-1, *x.shape[2:]) for x in sums],
                first_layer=repeat * schedule.layers_at_once if schedule.num_repeats > 1 else 0,
            )
        )

    at_all_stages = jax.vmap(stage, spmd_axis_name=axis)

    def one_tick(state: Any, tick: jax.Array) -> tuple[Any, None]:
        moving, waiting, returned, sums = state
        job = jnp.clip(tick - numbers, 0, micro * schedule.num_repeats - 1)
        is_first = numbers == 0
        is_entering = tick < micro * schedule.num_repeats
        entering, waiting = _taken_out(waiting, tick % micro, is_entering)
        carried = spread([_where(is_first, *both) for both in zip(entering, moving, strict=True)])
        operands = (shared, shared_samples, layers, layer_samples, carried, sums)
        results, besides, sums = at_all_stages(operands, job // micro, job % micro)
        moved = spread(_to_next_stage(spread(results)))
        slot, is_back = (tick - stages + 1) % micro, tick >= stages - 1
        waiting = _put_back(waiting, moved, slot, is_back)
        is_job = (tick >= numbers) & (tick - numbers < micro * schedule.num_repeats)
        returned = [_filed(all_, one, job, is_job, micro) for all_, one in zip(returned, besides, strict=True)]
        sums = [x if x is None else x.reshape(shape) for x, shape in zip(sums, of_stages, strict=True)]
        sums = [at_parts(*each) for each in zip(sums, num_parts, strict=True)]
        return (moved, spread(waiting, 2), [*map(at_stages, returned)], sums), None

    # Until the first microbatch reaches it, a stage runs on what has not been through the layers before it: values that
    # no layer turns into NaN, which zeros might become. Nothing of it is used.
    moving = [x[:, 0] for x in waiting]
    operands = (shared, shared_samples, layers, layer_samples, moving, sums)
    shapes = jax.eval_shape(at_all_stages, operands, numbers, numbers)[1]
    returned = [jnp.zeros((stages, schedule.num_repeats * micro, *x.shape[1:]), x.dtype) for x in shapes]
    start = (spread(moving), spread(waiting, 2), [*map(at_stages, returned)], sums)
    (_, waiting, returned, _), _ = jax.lax.scan(one_tick, start, jnp.arange(schedule.num_ticks))
    return [x[0] for x in waiting], [_by_layer(x, schedule) for x in returned]


def _by_stage(x: jax.Array, schedule: CircularSchedule, at_stages: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Give each stage its groups of layers: (stages, repeats, layers at once, ...), of a stack (L, ...).

    With repeats, a stage has as many groups that follow each other, and runs each `stages`-th. Left to itself, XLA
    gathers all of them on all devices, or their gradients. So each packs what it has for each stage, and they exchange
    that: no device gets more than it runs, up to what does not divide.
    """
    stages, repeats, num = schedule.num_stages, schedule.num_repeats, schedule.layers_at_once
    x = at_stages(x.reshape(stages, repeats, num, *x.shape[1:]))
    if repeats == 1:
        return x
    packed, arrived = _packing(stages, repeats)
    x = at_stages(_taken(x, packed)).reshape(stages, -1, stages, *x.shape[2:])
    x = at_stages(jnp.moveaxis(x, 2, 0))
    return at_stages(_taken(x.reshape(stages, -1, *x.shape[3:]), arrived))


def _packing(stages: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of its groups each stage packs, equally many for each stage; and which of what arrives it runs when.

    Of two stages the first has groups 0 to 2 and runs 0, 2 and 4. It packs 0 and 1, then 2 and something in place of
    what it does not have.

    >>> packed, arrived = _packing(2, 3)
    >>> packed.tolist(), arrived.tolist()
    ([[0, 1, 2, 2], [1, 0, 2, 2]], [[0, 1, 2], [0, 2, 3]])
    """
    stage, rounds = np.arange(stages), -(-repeats // stages)
    turned = (stage[None] - (stage * repeats)[:, None]) % stages  # of the first group that a stage has for another
    packed = np.minimum(turned[:, None] + stages * np.arange(rounds)[:, None], repeats - 1)
    group = np.arange(repeats) * stages + stage[:, None]
    return packed.reshape(stages, -1), group // repeats * rounds + group % repeats // stages


def _taken(x: jax.Array, numbers: np.ndarray) -> jax.Array:
    """Take rows (stages, M, ...) of each stage's own (stages, N, ...)."""
    if numbers.shape == x.shape[:2] and (numbers == np.arange(x.shape[1])).all():
        return x
    return jax.vmap(lambda own, some: own[some])(x, numbers)


def _by_layer_at_once(x: jax.Array) -> list[jax.Array]:
    """Return layers (stages, repeats, layers at once, ...) one by one; together their gradients are one stack again."""
    if not _is_float(x):
        return [x[:, :, number] for number in range(x.shape[2])]
    return [jnp.squeeze(row, 2) for row in jax.lax.split(x, (1,) * x.shape[2], axis=2)]


def _own(x: Any, repeat: jax.Array, *, unrolled: bool, in_place: bool) -> Any:
    """Return the layers of one repeat, or all of a stage's."""
    if in_place:
        return x.reshape(-1, *x.shape[2:])
    return [_at(row, repeat) for row in x] if unrolled else _at(x, repeat)


def _at(x: jax.Array, repeat: jax.Array) -> jax.Array:
    """Return the layers of one repeat, of all layers of a stage (repeats, layers at once, ...)."""
    return x[0] if x.shape[0] == 1 else jax.lax.dynamic_index_in_dim(x, repeat, keepdims=False)


def _is_float(x: jax.Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _has_gradient(x: jax.Array) -> bool:
    """Return whether an array may have a gradient: one of 8 bits is what others were rounded to."""
    return not _is_float(x) or x.dtype.itemsize > 1


def _where(is_first: jax.Array, first: jax.Array, others: jax.Array) -> jax.Array:
    return jnp.where(is_first.reshape(-1, *[1] * (first.ndim - 1)), first, others)


Rows = list[jax.Array]


@jax.custom_vjp
def _to_next_stage(rows: Rows) -> Rows:
    """Move rows (stages, ...) on by one stage, the last one's to the first, and their gradients back.

    JAX would turn back what `jnp.roll` cuts and joins: two permutes of all devices in the place of one.
    """
    return [jnp.roll(x, 1, axis=0) for x in rows]


_to_next_stage.defvjp(
    lambda rows: (_to_next_stage(rows), None),
    lambda _, gradients: ([None if is_without_gradient(x) else jnp.roll(x, -1, axis=0) for x in gradients],),
)


@jax.custom_vjp
def _taken_out(waiting: Rows, slot: jax.Array, is_job: jax.Array) -> tuple[Rows, Rows]:
    """Return the microbatch that enters the first stage, and all that wait, as they were.

    Nobody reads its place again until something else is put there. So its gradient is written there, into those of all.
    Differentiated by JAX, it would be an array of all microbatches, added to theirs in every tick.
    """
    del is_job
    return [_row(x, slot) for x in waiting], waiting


def _taken_out_backward(at: tuple[jax.Array, jax.Array], gradients: tuple[Rows, Rows]) -> tuple[Rows, None, None]:
    return _with_rows(gradients[1], gradients[0], *at), None, None


@jax.custom_vjp
def _put_back(waiting: Rows, moved: Rows, slot: jax.Array, is_back: jax.Array) -> Rows:
    """Write what came back from the last stage to the place that its microbatch was taken out of."""
    return _with_rows(waiting, moved, slot, is_back)


def _put_back_backward(at: tuple[jax.Array, jax.Array], gradients: Rows) -> tuple[Rows, list[Any], None, None]:
    slot, is_back = at
    moved = [None if is_without_gradient(x) else jnp.where(is_back, _row(x, slot), 0) for x in gradients]
    return gradients, moved, None, None


_taken_out.defvjp(lambda waiting, *at: (_taken_out(waiting, *at), at), _taken_out_backward)
_put_back.defvjp(lambda waiting, moved, *at: (_put_back(waiting, moved, *at), at), _put_back_backward)


def _row(x: jax.Array, slot: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(x, slot, 1, keepdims=False)


def _with_rows(waiting: Rows, rows: Rows, slot: jax.Array, is_meant: jax.Array) -> Rows:
    return [
        x
        if is_without_gradient(x)
        else jax.lax.dynamic_update_index_in_dim(x, jnp.where(is_meant, row, _row(x, slot)), slot, 1)
        for x, row in zip(waiting, rows, strict=True)
    ]


def _filed(all_: jax.Array, one: jax.Array, job: jax.Array, is_job: jax.Array, micro: int) -> jax.Array:
    """Write what layers return besides (stages, layers at once, ...) to the places of their jobs."""

    def of_stage(all_: jax.Array, one: jax.Array, job: jax.Array, is_job: jax.Array) -> jax.Array:
        before = jax.lax.dynamic_index_in_dim(all_, job, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(all_, jnp.where(is_job, one, before), job, 0)

    return jax.vmap(of_stage)(all_, one, job, is_job)


def _by_layer(x: jax.Array, schedule: CircularSchedule) -> jax.Array:
    """Reshape (stages, repeats * microbatches, layers at once, ...) to (layers, microbatches, ...)."""
    stages, repeats, micro = schedule.num_stages, schedule.num_repeats, schedule.num_microbatches
    x = x.reshape(stages, repeats, micro, *x.shape[2:])  # stage, repeat, microbatch, layer
    x = jnp.moveaxis(x, (1, 0, 3, 2), (0, 1, 2, 3))
    return x.reshape(schedule.num_layers, micro, *x.shape[4:])
