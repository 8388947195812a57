"""The output of a compiler as plain data: everything that facts are computed from, without the executable.

Compiling takes most of the time of an explanation, so this much of the result can be saved and read back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.analysis.attribution.leaves import each_sharding, passed_arguments
from outlay.arrays.shardings import OnHost
from outlay.core.paths import flatten_paths


@dataclass(frozen=True)
class MemoryStats:
    """The compiler's own figures of memory, named as `compiled.memory_analysis()` names them, in bytes."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int
    host_argument_size_in_bytes: int
    host_output_size_in_bytes: int
    host_alias_size_in_bytes: int
    host_temp_size_in_bytes: int


@dataclass(frozen=True)
class MovedLeaf:
    """A leaf of a state that comes back with another sharding.

    Attributes:
        path: its path.
        before: its spec.
        after: the spec that it comes back with.
        parameter: its number among the parameters of the program.
    """

    path: str
    before: str
    after: str
    parameter: int


@dataclass(frozen=True)
class ReturnedState:
    """The state that a step takes as its first argument and returns as its first output.

    Attributes:
        num_leaves: its number of leaves.
        is_donated: whether any leaf is donated.
        moved: the leaves that come back with another sharding.
    """

    num_leaves: int
    is_donated: bool
    moved: tuple[MovedLeaf, ...]


@dataclass(frozen=True)
class CompilerOutput:
    """A compiled program.

    Attributes:
        text: the optimized program; empty if the compiler gives none.
        memory: the compiler's figures; None if it gives none.
        passed: for each used argument its path, if known, and whether it is donated.
        state: the state that comes back; None if the first argument is not a state.
    """

    text: str
    memory: MemoryStats | None
    passed: tuple[tuple[str, bool | None], ...]
    state: ReturnedState | None

    @classmethod
    def of(cls, compiled: jax.stages.Compiled, *, of_program: bool) -> CompilerOutput:
        """Read the output from a compiled program of JAX.

        Args:
            compiled: the program.
            of_program: whether its arguments are the state and the batch of an `outlay.Program`.
        """
        stats = compiled.memory_analysis()
        names = [field.name for field in dataclasses.fields(MemoryStats)]
        return cls(
            text=compiled.as_text() or "",
            memory=MemoryStats(**{name: getattr(stats, name, 0) for name in names}) if stats is not None else None,
            passed=tuple(passed_arguments(compiled, of_program=of_program)),
            state=_returned_state(compiled),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompilerOutput:
        """Read back what `to_dict` gave."""
        memory, state = data["memory"], data["state"]
        return cls(
            text=data["text"],
            memory=None if memory is None else MemoryStats(**memory),
            passed=tuple((path, donated) for path, donated in data["passed"]),
            state=None
            if state is None
            else ReturnedState(**{**state, "moved": tuple(MovedLeaf(**moved) for moved in state["moved"])}),
        )


def _returned_state(compiled: jax.stages.Compiled) -> ReturnedState | None:
    """Describe the state that comes back; None unless the first output has the shapes of the first argument."""
    if not isinstance(compiled.args_info, tuple) or not compiled.args_info[0]:
        return None
    before = compiled.args_info[0][0]
    outputs, shardings = compiled.out_info, compiled.output_shardings
    infos = jax.tree.leaves(before)
    # A step returns its state and outputs; a function with one result may only happen to keep its argument's shapes.
    if not (isinstance(outputs, tuple) and len(outputs) > 1 and infos and _shapes(before) == _shapes(outputs[0])):
        return None
    have = each_sharding(before, compiled.input_shardings[0][0])
    moved = _moved(before, have, jax.tree.leaves(shardings[0]))
    return ReturnedState(len(infos), any(info.donated for info in infos), tuple(moved))


def _moved(before: Any, have: Sequence[Any], want: Sequence[Any]) -> list[MovedLeaf]:
    moved: list[MovedLeaf] = []
    parameter = 0
    for (path, info), old, new in zip(flatten_paths(before)[0], have, want, strict=True):
        if old is None:  # unused, so the program has no parameter for it
            continue
        # A program compiled for absent GPUs reports how a leaf on the host is split, but not its memory kind.
        back = old if isinstance(old, OnHost) and new.memory_kind is None and _dims(old) == _dims(new) else new
        if not old.is_equivalent_to(back, len(info.shape)):
            moved.append(MovedLeaf(path, _spec(old), _spec(new), parameter))
        parameter += 1
    return moved


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [(path, tuple(leaf.shape), str(leaf.dtype)) for path, leaf in flatten_paths(tree)[0]]


def _spec(sharding: Any) -> str:
    return str(getattr(sharding, "spec", sharding))


def _dims(sharding: Any) -> tuple[Any, ...]:
    """Return the dims of a spec without unsplit ones at its end, which a spec may name or leave out."""
    dims = list(getattr(sharding, "spec", ()))
    while dims and dims[-1] is None:
        dims.pop()
    return tuple(dims)
