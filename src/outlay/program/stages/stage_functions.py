"""What one place of a pipeline computes: forward, backward, and the backward pass in two halves.

The forward pass keeps what its derivative needs (`jax.vjp`), so a model's own `jax.checkpoint` decides what that is.
Each function is a traced program, which runs in a trace or is compiled for the devices of a stage. Weights that a place
reads, and everything else that it was given already, are not kept a second time.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from outlay.core.jax_needed_operations import needed_for
from outlay.core.jax_tracing import replay
from outlay.program.stages.backward_halves import BackwardHalves
from outlay.program.stages.plain_keys import impl_of, with_impl, without_impl
from outlay.program.stages.stage_cut import CutLoss


@dataclass(frozen=True)
class Taken:
    """What a place takes, by the numbers of the arguments of the loss.

    Attributes:
        shared: parameters besides layers.
        others: what is not differentiated: constants, and samples.
    """

    shared: tuple[int, ...]
    others: tuple[int, ...]


class StageFunctions:
    """The functions of one place.

    Args:
        cut: the loss.
        place: the place.
        layers: its layers, as shapes.
        arguments: the arguments of the loss, as shapes; stacks may be anything.
        is_parameter: which of them are parameters.
        moving: what it is given by the place before, as shapes.

    Attributes:
        place: the place.
        taken: what it takes besides its layers.
        moved: what it gives to the next place, as shapes; of the last place the sums of the loss.
        residuals: what its forward pass keeps for its backward pass besides what it was given, as shapes.
        is_moved_back: which of what it was given has a gradient.
        is_last: whether there is no next place.
    """

    def __init__(
        self,
        cut: CutLoss,
        place: int,
        layers: Sequence[Any],
        arguments: Sequence[Any],
        is_parameter: Sequence[bool],
        moving: Sequence[Any],
    ) -> None:
        self.place, self.is_last = place, place == cut.num_places - 1
        given = [number for number, is_stack in enumerate(cut.is_stack) if not is_stack]
        num_layers, num_given = len(layers), len(given)

        def run(*values: Any) -> list[Any]:
            whole: list[Any] = [None] * len(arguments)
            for number, value in zip(given, values[num_layers:], strict=False):
                whole[number] = value
            return cut.run(place, values[:num_layers], whole, values[num_layers + num_given :])

        traced = jax.make_jaxpr(run)(*layers, *(arguments[number] for number in given), *moving)
        program, used = needed_for(traced, [True] * len(traced.jaxpr.outvars))
        is_used = dict(zip(given, used[num_layers:][:num_given], strict=True))
        self.taken = Taken(
            tuple(n for n in given if is_used[n] and is_parameter[n]),
            tuple(n for n in given if is_used[n] and not is_parameter[n]),
        )
        self.num_layers, self.num_shared, self.num_others = num_layers, len(self.taken.shared), len(self.taken.others)
        taken = [*self.taken.shared, *self.taken.others]
        shapes = [*layers, *(arguments[number] for number in taken), *moving]
        # Where each argument of the program stands among those of the functions here.
        at = [*range(num_layers), *(num_layers + taken.index(n) if is_used[n] else -1 for n in given)]
        at += range(num_layers + len(taken), len(shapes))
        at = [place for place, one in zip(at, used, strict=True) if one]

        def computed(*values: Any) -> list[Any]:
            return replay(program, [values[place] for place in at])

        self.is_moved_back = [_is_float(x) for x in moving]
        first_moving = num_layers + len(taken)
        self._differentiated = [
            *(first_moving + number for number, one in enumerate(self.is_moved_back) if one),
            *range(num_layers + self.num_shared),
        ]
        self._trace(computed, shapes)

    def _trace(self, computed: Any, shapes: Sequence[Any]) -> None:
        trees: list[Any] = []
        results = jax.eval_shape(lambda *values: computed(*values), *shapes)
        is_float = [True] + [False] * (len(results) - 1) if self.is_last else [_is_float(x) for x in results]

        def forward(*values: Any) -> tuple[list[Any], list[Any]]:
            def of(*own: Any) -> tuple[list[Any], list[Any]]:
                whole = [*values]
                for number, value in zip(self._differentiated, own, strict=True):
                    whole[number] = value
                results = computed(*whole)
                return [x for x, one in zip(results, is_float, strict=True) if one], results

            _, back, results = jax.vjp(of, *(values[number] for number in self._differentiated), has_aux=True)
            residuals, tree = jax.tree.flatten(back)
            trees.append(tree)
            return results, residuals

        traced = jax.make_jaxpr(forward)(*shapes)
        num, numbers = len(results), {var: n for n, var in enumerate(traced.jaxpr.invars)}
        residuals = traced.jaxpr.outvars[num:]
        source = [None if isinstance(var, Literal) else numbers.get(var) for var in residuals]
        own = [n for n, number in enumerate(source) if number is None]
        self.held = tuple(sorted({number for number in source if number is not None}))
        self.moved = results
        impls: list[Any] = []

        def without_given(*values: Any) -> list[Any]:
            results = replay(traced, values)
            residuals = [results[num + number] for number in own]
            impls[:] = map(impl_of, residuals)
            return [*results[:num], *map(without_impl, residuals)]

        self.forward = jax.make_jaxpr(without_given)(*shapes)
        self.residuals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self.forward.out_avals[num:]]
        back_shapes = [x for x, one in zip(results, is_float, strict=True) if one]

        def backward(*values: Any) -> list[Any]:
            given, others = dict(zip(self.held, values, strict=False)), values[len(self.held) :]
            residuals = iter([*map(with_impl, others, impls), *others[len(impls) :]])
            whole = [given[number] if number is not None else next(residuals) for number in source]
            back = jax.tree.unflatten(trees[0], whole)
            start = [jnp.ones(back_shapes[0].shape, back_shapes[0].dtype)] if self.is_last else [*residuals]
            return list(back(start))

        arguments = [shapes[number] for number in self.held]
        sent = [] if self.is_last else [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in back_shapes]
        self.sent_back = sent
        self.backward = jax.make_jaxpr(backward)(*arguments, *self.residuals, *sent)

    def meant_for(self, forward: Any, backward: Any) -> StageFunctions:
        """Return the same functions with other programs, which mean them on the devices of a stage."""
        other = copy.copy(self)
        other.forward, other.backward = forward, backward
        return other

    @property
    def num_back(self) -> int:
        """How many gradients it gives to the place before."""
        return sum(self.is_moved_back)

    @functools.cached_property
    def halves(self) -> BackwardHalves:
        """The backward pass in two halves."""
        return BackwardHalves(self.backward, self.num_back)


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
