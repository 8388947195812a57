"""Cut a traced loss at its scan over layers, into what each place of a pipeline computes on one microbatch.

A place is one group of layers on one stage: place `repeat * num_stages + stage`. The first one also computes what comes
before the scan, the last one what comes after. What other layers take of that besides, such as a mask, or keys for
each layer, each place computes for itself, since it depends on no layer.

A place with few layers has no loop over them: each is an array of its own, which a product takes as it lies. Of a stack
it would take a slice, which XLA for CPU copies for each product, and adds gradients to likewise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from outlay.core.error_types import Problem
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import CHECKPOINTS, Operations, operations, replay, rerun_scan, scan_operands
from outlay.program.batch_locality import sample_dim

# Programs of stages take as many times longer to compile. By then a loop hardly costs more than its layers.
_FEW_LAYERS = 4


def is_unrolled(scan: Any, most_layers: int) -> bool:
    """Return whether places have no loop over their layers: where they are few, or the model unrolls as many.

    What is recomputed stays in a loop, since without one a compiler may recompute all layers at once.

    Args:
        scan: the scan over all layers.
        most_layers: the layers of the largest place.
    """
    body, unroll = scan.params["jaxpr"], int(scan.params["unroll"])
    is_recomputed = any(eqn.primitive.name in CHECKPOINTS for eqn in operations(body))
    return most_layers <= max(_FEW_LAYERS, unroll) and not is_recomputed


@dataclass(frozen=True)
class CutLoss:
    """A loss over stacked layers, cut at its scan.

    Attributes:
        jaxpr: the loss of one microbatch, as a traced program without constants.
        of_all: the same for the whole batch, operation by operation.
        at: the place of the scan among its operations.
        is_stack: which of its arguments are stacked layers.
        counts: layers of each place.
        unrolled: whether places have no loop over their layers, and are given each as an array of its own.
    """

    jaxpr: Any
    of_all: Any
    at: int
    is_stack: Sequence[bool]
    counts: tuple[int, ...]
    unrolled: bool = False

    @property
    def scan(self) -> Any:
        """The scan over the layers."""
        return self.jaxpr.jaxpr.eqns[self.at]

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return self.scan.params["length"]

    @property
    def num_places(self) -> int:
        """Groups of layers, on all stages."""
        return len(self.counts)

    @property
    def most_layers(self) -> int:
        """Layers of the largest place."""
        return max(self.counts)

    @property
    def is_equal(self) -> bool:
        """Whether all places have the same number of layers."""
        return len(set(self.counts)) == 1

    @property
    def most_pieces(self) -> int:
        """In how many arrays the largest place is given each operand of the scan that is layers."""
        return self.most_layers if self.unrolled else 1

    def num_pieces(self, place: int) -> int:
        """In how many a place is."""
        return self.counts[place] if self.unrolled else 1

    def in_pieces(self, x: Any) -> list[Any]:
        """Return the layers of all stages, one stage behind the other, as arrays of one layer of each stage."""
        if not self.unrolled:
            return [x]
        rows = x.reshape(-1, self.most_layers, *x.shape[1:])
        return [jnp.squeeze(row, 1) for row in jax.lax.split(rows, (1,) * self.most_layers, axis=1)]

    def rows(self, place: int) -> slice:
        """Return which layers a place has."""
        first = sum(self.counts[:place])
        return slice(first, first + self.counts[place])

    @property
    def _of_layers(self) -> set[Any]:
        """The values before the scan that depend on stacked layers."""
        values = {var for var, is_stack in zip(self.jaxpr.jaxpr.invars, self.is_stack, strict=True) if is_stack}
        for eqn in self._before:
            if any(not isinstance(atom, Literal) and atom in values for atom in eqn.invars):
                values.update(eqn.outvars)
        return values

    @property
    def _before(self) -> list[Any]:
        return self.jaxpr.jaxpr.eqns[: self.at]

    @property
    def _after(self) -> list[Any]:
        return self.jaxpr.jaxpr.eqns[self.at + 1 :]

    @property
    def scanned_layers(self) -> list[Any]:
        """The operands of the scan that are layers: stacks, or what was computed of them, such as a cast."""
        operands, values = self.scan.invars[sum(scan_operands(self.scan.params)) :], self._of_layers
        return [atom for atom in operands if not isinstance(atom, Literal) and atom in values]

    @property
    def makes_layers(self) -> bool:
        """Whether the scan takes layers that are computed of the stacks, such as a cast, and not the stacks alone."""
        arguments = set(self.jaxpr.jaxpr.invars)
        return any(atom not in arguments for atom in self.scanned_layers)

    def moving_dims(self) -> list[int | None]:
        """Return, of what goes from place to place, which dim holds samples: of the carry, and then of layers' outputs.

        The outputs of layers are those of all places so far.
        """
        pairs = zip(self.of_all.jaxpr.eqns[self.at].outvars, self.scan.outvars, strict=True)
        return [sample_dim(*pair) for pair in pairs]

    def problems(self, num_fixed: int) -> Iterator[Problem]:
        """Yield why it cannot be cut.

        Args:
            num_fixed: so many of its first arguments hold no samples.
        """
        values, scan = self._of_layers, self.scan
        unscanned = scan.invars[: sum(scan_operands(scan.params))]
        if any(not isinstance(atom, Literal) and atom in values for atom in unscanned):
            what = "the scan takes layers of its own stack whole, and a stage has its own alone"
            yield Problem("layers elsewhere", source_line(scan) or "a scan", what, 'mode="auto"')
        for eqn in self._after:
            if any(not isinstance(atom, Literal) and atom in values for atom in eqn.invars):
                what = f"{eqn.primitive.name} reads layers after the scan, where the last stage has only its own"
                yield Problem("layers elsewhere", source_line(eqn) or "the loss", what, 'mode="auto"')
        samples = set(self.jaxpr.jaxpr.invars[num_fixed:])
        for eqn in self._before:
            operands = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
            if any(atom in samples for atom in operands):
                samples.update(eqn.outvars)
                if any(atom in values for atom in operands):
                    what = f"{eqn.primitive.name} makes layers of parameters and of samples"
                    yield Problem("layers of samples", source_line(eqn) or "the loss", what, 'mode="auto"')

    def layers(self, values: Sequence[Any]) -> list[Any]:
        """Return the operands of the scan that are layers, whole.

        Args:
            values: the arguments; those that hold samples may be anything.
        """
        of_layers = self._of_layers
        eqns = [eqn for eqn in self._before if any(var in of_layers for var in eqn.outvars)]
        taken = {atom for eqn in eqns for atom in eqn.invars if not isinstance(atom, Literal)}
        # What layers are made of besides stacks, such as a scale, comes from operations of its own.
        needed = [*self._needed_for(taken | set(self.scanned_layers))]
        return _run(needed, self.jaxpr.jaxpr.invars, self.scanned_layers, values)

    def _needed_for(self, values: set[Any]) -> list[Any]:
        needed: list[Any] = []
        for eqn in reversed(self._before):
            if any(var in values for var in eqn.outvars):
                needed.insert(0, eqn)
                values = values | {atom for atom in eqn.invars if not isinstance(atom, Literal)}
        return needed

    def run(self, place: int, layers: Sequence[Any], values: Sequence[Any], moving: Sequence[Any]) -> list[Any]:
        """Return what one place computes from one microbatch.

        Args:
            place: the place.
            layers: its part of `layers`; without a loop each layer of the first operand, then of the next.
            values: the arguments; those that are stacks may be anything.
            moving: what the place before returned; of the first place nothing.

        Returns:
            What moves on to the next place; of the last place the results of the loss.
        """
        scan = self.scan
        num_consts, num_carried = scan_operands(scan.params)
        of_layers, own_layers, num_pieces = self._of_layers, iter(layers), self.num_pieces(place)
        known = self._known(values)
        read = _reader(known)
        consts = [read(atom) for atom in scan.invars[:num_consts]]
        start = [read(atom) for atom in scan.invars[num_consts:][:num_carried]]
        carried, before = (start, []) if place == 0 else (moving[:num_carried], moving[num_carried:])
        slices = [
            [*itertools.islice(own_layers, num_pieces)]
            if not isinstance(atom, Literal) and atom in of_layers
            else self._own_pieces(place, read(atom))
            for atom in scan.invars[num_consts + num_carried :]
        ]
        run = self._turn_by_turn if self.unrolled else self._loop
        carried, outputs = run(consts, carried, slices, self.counts[place])
        if before:
            outputs = [jnp.concatenate(both) for both in zip(before, outputs, strict=True)]
        moved = [*carried, *outputs]
        if place < self.num_places - 1:
            return moved
        known.update(zip(scan.outvars, moved, strict=True))
        taken = [*known]
        return _run(self._after, taken, self.jaxpr.jaxpr.outvars, [known[var] for var in taken])

    def _own_pieces(self, place: int, x: Any) -> list[Any]:
        own = x[self.rows(place)]
        return [own[number] for number in range(self.counts[place])] if self.unrolled else [own]

    def _loop(self, consts: list[Any], carried: Any, slices: list[list[Any]], num: int) -> tuple[list[Any], list[Any]]:
        """Return the carry after some layers, and their outputs."""
        params = {**self.scan.params, "length": num, "unroll": min(int(self.scan.params["unroll"]), num)}
        values = [*consts, *carried, *(x for (x,) in slices)]
        results = rerun_scan(params, values, lambda turn: replay(params["jaxpr"], turn))
        return results[: len(carried)], results[len(carried) :]

    def _turn_by_turn(
        self, consts: list[Any], carried: Any, slices: list[list[Any]], num: int
    ) -> tuple[list[Any], list[Any]]:
        """Return the same without a loop."""
        outputs = []
        for number in range(num):
            results = replay(self.scan.params["jaxpr"], [*consts, *carried, *(each[number] for each in slices)])
            carried = results[: len(carried)]
            outputs.append(results[len(carried) :])
        return [*carried], [jnp.stack(each) for each in zip(*outputs, strict=True)]

    def _known(self, values: Sequence[Any]) -> dict[Any, Any]:
        """Return the values of variables before the scan, apart from what depends on layers."""
        of_layers = self._of_layers
        arguments = [
            (var, value) for var, value in zip(self.jaxpr.jaxpr.invars, values, strict=True) if var not in of_layers
        ]
        eqns = [eqn for eqn in self._before if not any(var in of_layers for var in eqn.outvars)]
        results = [var for eqn in eqns for var in eqn.outvars]
        computed = _run(eqns, [var for var, _ in arguments], results, [value for _, value in arguments])
        return dict(arguments) | dict(zip(results, computed, strict=True))


def _run(eqns: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    return replay(Operations(eqns, invars, outvars), values)


def _reader(known: dict[Any, Any]) -> Callable[[Any], Any]:
    return lambda atom: atom.val if isinstance(atom, Literal) else known[atom]
