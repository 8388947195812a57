"""What a loop keeps of its steps: outputs, and values recorded by address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, join_parts, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean

Values = dict[str, Any]
"""Everything that could be kept of a step, by address: `PART:PORT` and `PART.PATH`."""
Buffers = dict[tuple[str, str], jax.Array]
"""What has been kept so far, by kind and name."""


@dataclass(frozen=True)
class RecordedOutput:
    """A value that is recorded every `every` steps.

    Attributes:
        kind: `outputs` or `recorded`.
        name: the name under which it is returned.
        part: the part that it belongs to.
        where: the port, or the path within the part's state.
        every: the number of steps from one entry to the next.
        is_port: whether it is an output of the part, or a leaf of its state.
    """

    kind: str
    name: str
    part: str
    where: str
    every: int
    is_port: bool

    @classmethod
    def recorded(cls, address: str, every: int) -> RecordedOutput:
        """Return what an address names."""
        part, colon, port = address.partition(":")
        if colon:
            return cls("recorded", address, part, port, every, True)
        parts = split_path(address)
        return cls("recorded", address, parts[0] if parts else "", join_parts(parts[1:]), every, False)

    @property
    def key(self) -> tuple[str, str]:
        """Its key among the buffers."""
        return self.kind, self.name

    @property
    def address(self) -> str:
        """Its key among the values."""
        return f"{self.part}:{self.where}" if self.is_port else join_parts((self.part, *split_path(self.where)))


def values_of(own: Mapping[str, Any], produced: Mapping[str, Mapping[str, Any]]) -> Values:
    """Return everything that could be kept of a step."""
    ports = {f"{part}:{port}": value for part, outputs in produced.items() for port, value in outputs.items()}
    return ports | dict(flatten_paths(dict(own))[0])


def check_addresses(recorded_outputs: Sequence[RecordedOutput], values: Values) -> None:
    """Raise for all addresses that name nothing."""
    problems = [
        Problem("unknown address", one.name, f"there is nothing at {one.address}", _fix(one.address, values))
        for one in recorded_outputs
        if one.address not in values
    ]
    if problems:
        head = (
            f"{counted(len(problems), 'address to keep names', 'addresses to keep name')} neither a port nor "
            "a leaf of the state:"
        )
        raise ProgramError(head, problems)


def empty(recorded_outputs: Sequence[RecordedOutput], values: Values, num_steps: int) -> Buffers:
    """Allocate the buffers for a number of steps."""
    return {
        one.key: jnp.zeros((num_steps // one.every, *values[one.address].shape), values[one.address].dtype)
        for one in recorded_outputs
    }


def keep(
    recorded_outputs: Sequence[RecordedOutput], buffers: Buffers, values: Callable[[], Values], step: jax.Array
) -> Buffers:
    """Return the buffers after a step.

    Args:
        recorded_outputs: what is kept.
        buffers: those before.
        values: gives all that could be kept; it is asked in those steps only that keep some.
        step: the number of the step.
    """
    for every in dict.fromkeys(one.every for one in recorded_outputs):
        # A loop of fewer steps than a stride records nothing, and its buffer has no entry to write to.
        these = [one for one in recorded_outputs if one.every == every and len(buffers[one.key])]
        before = {one.key: buffers[one.key] for one in these}
        if every == 1:
            buffers = {**buffers, **_written(before, these, values(), step)}
        elif these:
            # Writing each time to a place that is written again costs a pass over a kernel; a condition costs nothing.
            after = jax.lax.cond(
                (step + 1) % every == 0,
                lambda before, these=these, every=every: _written(before, these, values(), step // every),
                lambda before: before,
                before,
            )
            buffers = {**buffers, **after}
    return buffers


def _written(buffers: Buffers, these: Sequence[RecordedOutput], values: Values, index: jax.Array) -> Buffers:
    return {
        one.key: jax.lax.dynamic_update_index_in_dim(buffers[one.key], values[one.address], index, 0) for one in these
    }


def _fix(address: str, values: Values) -> str:
    hint = did_you_mean(address, list(values))
    return hint if len(values) <= 20 or hint.startswith("did") else "an address such as " + next(iter(values))
