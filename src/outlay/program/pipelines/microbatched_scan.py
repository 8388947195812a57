"""Run a traced scan over layers as a pipeline: what each microbatch, each layer and all of them take.

The program that holds the scan is traced for the whole batch and for one microbatch. A dim whose size differs holds
samples. What is carried without samples, such as a key that every layer splits, goes from layer to layer alike for all
microbatches; it is computed first, by a scan of its own. Whatever takes samples of several microbatches together is
refused with its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from outlay.core.error_types import Problem
from outlay.core.jax_needed_operations import needed_for
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import run_jaxpr, scan_operands
from outlay.program.batch_locality import sample_dim
from outlay.program.mixed_samples import mixing_operations
from outlay.program.pipelines.circular_schedule import CircularSchedule, Operands, run_circular
from outlay.program.pipelines.layers_in_place import run_layer
from outlay.program.place_inside import Place

if TYPE_CHECKING:
    from outlay.program.pipelines.sums_in_parts import SplitBatch


def scan_problems(scan: Any, of_few: Any) -> list[Problem]:
    """Return what keeps a scan from taking its samples in microbatches."""
    at = source_line(scan) or "a scan over layers"
    if scan.params["reverse"]:
        what = "it runs the layers from the last to the first, and the first stage holds the first"
        return [Problem("reverse scan", at, what, "scan the layers forward, or leave the pipeline rule out")]
    if scan.params["length"] != of_few.params["length"]:
        what = (
            f"it has {scan.params['length']} rounds for the whole batch and {of_few.params['length']} for a microbatch"
        )
        return [Problem("rounds of samples", at, what, "scan over the layers alone")]
    problems = [
        Problem("other random numbers", source_line(eqn) or at, _OF_RBG, "jax.random.key(seed, impl='threefry2x32')")
        for eqn in scan.params["jaxpr"].jaxpr.eqns
        if _draws_of_rbg(eqn)
    ]
    first: dict[tuple[str, bool], str] = {}  # the first operation of each line, by whether it draws random numbers
    for eqn, line in mixing_operations(scan.params["jaxpr"], of_few.params["jaxpr"]):
        first.setdefault((line or at, eqn.primitive.name == "random_bits"), eqn.primitive.name)
    for (line, draws), name in first.items():
        if draws:
            what = "it draws random numbers for all samples at once, so that a microbatch would draw others"
            fix = "draw for each sample from a key of its own: jax.vmap over the keys that train_step gives the loss"
        else:
            what = f"{name} takes samples of the batch together, or their number, and a microbatch has only some"
            fix = "compute statistics over features instead of samples (such as LayerNorm), or leave the pipeline out"
        problems.append(Problem("not by microbatch", line, what, fix))
    return problems


_OF_RBG = "keys of rbg draw other numbers for several microbatches at a time than for one after the other"


def _draws_of_rbg(eqn: Any) -> bool:
    """Return whether an operation, or one within it, draws from keys whose numbers change under `jax.vmap`."""
    if eqn.primitive.name.startswith("random_") and any("rbg" in str(var.aval.dtype) for var in eqn.invars[:1]):
        return True
    return any(map(_draws_of_rbg, (each for inner in jaxprs_in_params(eqn.params) for each in inner.eqns)))


def run_in_microbatches(
    scan: Any,
    of_few: Any,
    values: Sequence[Any],
    schedule: CircularSchedule,
    axis: str,
    place: Place,
    sample_axes: tuple[str, ...],
    num_parts: int,
    batch: SplitBatch | None = None,
) -> list[Any]:
    """Return the results of a scan over layers, computed by a pipeline.

    Args:
        scan: the operation, traced for the whole batch.
        of_few: the same, traced for a microbatch.
        values: its operands.
        schedule: how many of what.
        axis: the mesh axis of the stages.
        place: constrains where values live.
        sample_axes: the mesh axes over which XLA splits samples.
        num_parts: how many devices they have together.
        batch: how the arguments of its body are split, where devices add up gradients each for itself; else None.
    """
    return _PipelinedScan(scan, of_few, schedule, axis, place, sample_axes, num_parts, batch).run(values)


class _PipelinedScan:
    def __init__(
        self,
        scan: Any,
        of_few: Any,
        schedule: CircularSchedule,
        axis: str,
        place: Place,
        sample_axes: tuple[str, ...],
        num_parts: int,
        split: SplitBatch | None,
    ) -> None:
        self._params, self._schedule, self._axis, self._place = of_few.params, schedule, axis, place
        self._sample_axes, self._num_parts, self._split = sample_axes, num_parts, split
        self._num_consts, self._num_carried = scan_operands(scan.params)
        self._dims, self._result_dims = (
            [sample_dim(*atoms) for atoms in zip(full, few, strict=True)]
            for full, few in ((scan.invars, of_few.invars), (scan.outvars, of_few.outvars))
        )
        self._at = source_line(scan)

    def run(self, values: Sequence[Any]) -> list[Any]:
        values = [jnp.asarray(x) if isinstance(x, int | float | bool) else x for x in values]
        last, before, besides = self._without_samples(values)
        consts, carried, layers = self._parts(values)
        const_dims, carried_dims, layer_dims = self._parts(self._dims)
        micro, parts = self._schedule.num_microbatches, self._num_parts
        operands = Operands(
            _of(consts, const_dims, None),
            [split(x, dim, micro, parts) for x, dim in zip(consts, const_dims, strict=True) if dim is not None],
            [*before, *_of(layers, layer_dims, None)],
            [
                jnp.moveaxis(split(x, dim, micro, parts), 0, 1)
                for x, dim in zip(layers, layer_dims, strict=True)
                if dim is not None
            ],
            [split(x, dim, micro, parts) for x, dim in zip(carried, carried_dims, strict=True) if dim is not None],
            [dim for dim in carried_dims if dim is not None],
            self._sample_axes,
            *self._parts_of_sums(),
        )
        moved, returned = run_circular(
            self._schedule, self._axis, self._on_stage, operands, self._place, unrolled=self._is_unrolled
        )
        moved = [
            joined(x, dim, parts) for x, dim in zip(moved, (d for d in carried_dims if d is not None), strict=True)
        ]
        own_dims = [dim for dim in self._result_dims[self._num_carried :] if dim is not None]
        returned = [joined(jnp.moveaxis(x, 1, 0), dim, parts) for x, dim in zip(returned, own_dims, strict=True)]
        return [
            *_merged(self._result_dims[: self._num_carried], moved, last),
            *_merged(self._result_dims[self._num_carried :], returned, besides),
        ]

    def _parts_of_sums(self) -> tuple[tuple[str, ...], list[int]]:
        """Return the axes whose devices add up gradients each for itself, and their number for each of the layers."""
        if self._split is None:
            return (), []
        _, carried_dims, layer_dims = self._parts(self._dims)
        num_free, num_own = carried_dims.count(None), layer_dims.count(None)
        return self._split.parts.axes, [*[1] * num_free, *[self._split.parts.num] * num_own]

    def _split_of_others(self, in_place: Sequence[bool]) -> SplitBatch | None:
        """Return how what a layer takes besides its own arrays is split."""
        if self._split is None:
            return None
        consts, carried, layers = self._parts(self._split.splits)
        _, carried_dims, layer_dims = self._parts(self._dims)
        own = [*_of(carried, carried_dims, None), *_of(layers, layer_dims, None)]
        with_samples = [
            [split for split, dim in zip(splits, dims, strict=True) if dim is not None]
            for splits, dims in ((carried, carried_dims), (layers, layer_dims))
        ]
        rest = [split for split, one in zip(own, in_place, strict=True) if not one]
        return replace(self._split, splits=[*consts, *with_samples[0], *rest, *with_samples[1]])

    def _parts(self, of_operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        first, second = self._num_consts, self._num_consts + self._num_carried
        return [*of_operands[:first]], [*of_operands[first:second]], [*of_operands[second:]]

    def _without_samples(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Compute what does not depend on samples: the last carry, the carry before each layer, and other results."""
        is_free = [dim is None for dim in self._result_dims]
        consts, carried, layers = self._parts(values)
        dims = self._parts(self._dims)[1]
        free = _of(carried, dims, None)
        if not any(is_free):
            return [], [], []
        needed, used = needed_for(self._params["jaxpr"], is_free)

        def turn(free: list[Any], slices: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
            given = [*consts, *_merged(dims, [None for dim in dims if dim is not None], free), *slices]
            results = _run(needed, [x for x, is_used in zip(given, used, strict=True) if is_used])
            num = len(free)
            return results[:num], ([*free], results[num:])

        last, (before, besides) = jax.lax.scan(turn, free, layers, length=self._params["length"])
        return last, before, besides

    @property
    def _is_unrolled(self) -> bool:
        """Whether the model writes out all layers of a stage, which then are arrays of their own."""
        return int(self._params["unroll"]) >= self._schedule.layers_at_once > 1

    def _on_stage(self, of: Operands) -> tuple[list[Any], list[Any], list[Any]]:
        """Run some layers on one microbatch."""
        const_dims, carried_dims, layer_dims = self._parts(self._dims)
        consts = _merged(const_dims, of.shared_samples, of.shared)
        num_free = sum(dim is None for dim in carried_dims)
        stacks = [x for x, one in zip(of.layers, of.in_place, strict=True) if one]
        split = self._split_of_others(of.in_place)

        def layer(in_place: list[Any], others: list[Any]) -> list[Any]:
            consts, carried, rest, layer_samples = others
            first, second = iter(in_place), iter(rest)
            own = [next(first) if one else next(second) for one in of.in_place]
            free, slices = own[:num_free], _merged(layer_dims, layer_samples, own[num_free:])
            return _run(self._params["jaxpr"], [*consts, *_merged(carried_dims, carried, free), *slices])

        def turn(so_far: Any, slices: Any) -> tuple[Any, list[Any]]:
            (carried, sums), (rest, layer_samples, number) = so_far, slices
            others = [consts, carried, rest, layer_samples]
            results, sums = run_layer(layer, stacks, sums, of.first_layer + number, others, split)
            own = [x for x, dim in zip(results, self._result_dims, strict=True) if dim is not None]
            return (own[: len(carried)], sums), own[len(carried) :]

        num = self._schedule.layers_at_once
        so_far = [*of.carried], [x for x, one in zip(of.sums, of.in_place, strict=True) if one]
        rest = [x for x, one in zip(of.layers, of.in_place, strict=True) if not one]
        if self._is_unrolled:
            returned = []
            for number in range(num):
                so_far, results = turn(
                    so_far, ([x[number] for x in rest], [x[number] for x in of.layer_samples], number)
                )
                returned.append(results)
            carried, sums = so_far
            returned = [jnp.stack(each) for each in zip(*returned, strict=True)]
        else:
            (carried, sums), returned = jax.lax.scan(
                turn,
                so_far,
                (rest, [*of.layer_samples], jnp.arange(num)),
                length=num,
                unroll=min(num, int(self._params["unroll"])),
            )
        left = iter(sums)
        return carried, returned, [next(left) if one else None for one in of.in_place]


def _run(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    return run_jaxpr(jaxpr, values, lambda eqn, values, bind: bind(*values))


def _of(values: Sequence[Any], dims: Sequence[int | None], kind: None) -> list[Any]:
    return [x for x, dim in zip(values, dims, strict=True) if dim is kind]


def _merged(dims: Sequence[int | None], with_samples: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Put values with samples and others in their order."""
    first, second = iter(with_samples), iter(others)
    return [next(second) if dim is None else next(first) for dim in dims]


def split(x: jax.Array, dim: int, num: int, parts: int) -> jax.Array:
    """Split a dim of samples into microbatches, in front, with equally many of each part, one after the other.

    Each device has a part, and so a part of every microbatch; pieces of its part are whole microbatches' pieces, which
    may lie on the stages.

    >>> split(jnp.arange(8), 0, 2, 2).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    before, after = x.shape[:dim], x.shape[dim + 1 :]
    pieces = jnp.moveaxis(x.reshape(*before, parts, num, -1, *after), dim + 1, 0)
    return pieces.reshape(num, *before, -1, *after)


def joined(x: jax.Array, dim: int, parts: int) -> jax.Array:
    """Undo `split`.

    >>> joined(split(jnp.arange(8), 0, 2, 2), 0, 2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    num, before, after = len(x), x.shape[1 : dim + 1], x.shape[dim + 2 :]
    pieces = jnp.moveaxis(x.reshape(num, *before, parts, -1, *after), 0, dim + 1)
    return pieces.reshape(*before, -1, *after)
