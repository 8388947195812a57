"""Cut a traced loss at its scan over layers, into what each place of a pipeline computes on one microbatch.

A place is one group of layers on one stage: place `repeat * num_stages + stage`. The first one also computes what comes
before the scan, the last one what comes after. What other layers take of that besides, such as a mask, or keys for
each layer, each place computes for itself, since it depends on no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal

from outlay.core.error_types import Problem
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import Operations, replay, rerun_scan, scan_operands
from outlay.program.batch_locality import sample_dim


@dataclass(frozen=True)
class CutLoss:
    """A loss over stacked layers, cut at its scan.

    Attributes:
        jaxpr: the loss of one microbatch, as a traced program without constants.
        of_all: the same for the whole batch, operation by operation.
        at: the place of the scan among its operations.
        is_stack: which of its arguments are stacked layers.
        counts: layers of each place.
    """

    jaxpr: Any
    of_all: Any
    at: int
    is_stack: Sequence[bool]
    counts: tuple[int, ...]

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
            layers: its part of `layers`.
            values: the arguments; those that are stacks may be anything.
            moving: what the place before returned; of the first place nothing.

        Returns:
            What moves on to the next place; of the last place the results of the loss.
        """
        scan, num = self.scan, self.counts[place]
        num_consts, num_carried = scan_operands(scan.params)
        of_layers, own_layers = self._of_layers, iter(layers)
        known = self._known(values)
        read = _reader(known)
        consts = [read(atom) for atom in scan.invars[:num_consts]]
        start = [read(atom) for atom in scan.invars[num_consts:][:num_carried]]
        carried, before = (start, []) if place == 0 else (moving[:num_carried], moving[num_carried:])
        slices = [
            next(own_layers) if not isinstance(atom, Literal) and atom in of_layers else read(atom)[self.rows(place)]
            for atom in scan.invars[num_consts + num_carried :]
        ]
        params = {**scan.params, "length": num, "unroll": min(int(scan.params["unroll"]), num)}
        results = rerun_scan(params, [*consts, *carried, *slices], lambda turn: replay(params["jaxpr"], turn))
        outputs = results[num_carried:]
        if before:
            outputs = [jnp.concatenate(both) for both in zip(before, outputs, strict=True)]
        moved = [*results[:num_carried], *outputs]
        if place < self.num_places - 1:
            return moved
        known.update(zip(scan.outvars, moved, strict=True))
        taken = [*known]
        return _run(self._after, taken, self.jaxpr.jaxpr.outvars, [known[var] for var in taken])

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
