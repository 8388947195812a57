"""The modes of a program, and the protocol `Execution` that each way of executing it implements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args

import jax
from jax.sharding import Mesh

from outlay.core.error_types import ProgramError
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.mesh_info import is_explicit
from outlay.graph.rows import Rows
from outlay.layout.plan import Plan
from outlay.program.compiler_options import CompilerOptions
from outlay.program.device_group import DeviceGroup

Mode = Literal["auto", "manual", "placed"]
Step = Callable[[Any, Any], tuple[Any, Any]]


def check_mode(mode: str, mesh: Mesh) -> None:
    """Raise for a mode that does not exist, or not on this mesh."""
    if mode not in get_args(Mode):
        raise ProgramError(f"there is no mode {mode!r}: {did_you_mean(mode, get_args(Mode))}")
    if mode != "auto" and is_explicit(mesh):
        raise ProgramError(
            f"mode {mode} takes a mesh with automatic axes: inside it each device's pieces have no sharding to be "
            "explicit about\n  fix: outlay.mesh(...) without explicit=True"
        )


T = TypeVar("T")


def only_part(what: str, parts: Sequence[T], mode: str) -> T:
    """Return what a program has as one, such as its compiled step; raise if it has one for each group of devices."""
    if len(parts) == 1:
        return parts[0]
    raise ProgramError(
        f"in mode {mode} this program has {counted(len(parts), 'compiled step')}, one for each of its "
        f"program.device_groups\n  fix: program.{what}_parts"
    )


def check_jit_enabled() -> None:
    """Raise if JAX is told to compile nothing: a program would then silently ignore its layout.

    Raises:
        ProgramError: `jax_disable_jit` is set.
    """
    if jax.config.values["jax_disable_jit"]:
        raise ProgramError(
            "jax_disable_jit is set, and a program is a compiled step: nothing would be laid out\n"
            "  fix: unset JAX_DISABLE_JIT; to debug line by line call the step itself: step(init(key), batch)"
        )


class Execution(Protocol):
    """A way to execute a program: one step over the whole mesh (`OneStep`), or a graph on `PlacedGraph`.

    What all ways share, above all the checks, is in `Program`.
    """

    plan: Plan
    state_shapes: Any
    batch_shapes: Any
    output_shapes: Any
    named_shapes: dict[str, Any]
    compiler_options: CompilerOptions
    rows: tuple[Rows, ...]
    device_groups: tuple[DeviceGroup, ...]
    num_steps_at_once: int
    runs_per_shard: bool
    sums_over_batch: bool
    why_summed_each_time: str
    steps_in_mesh: bool
    is_exact: bool
    sends_batch: bool
    traced_step: Any

    def check_key(self, key: Any) -> None:
        """Raise for a key whose state would differ from the plan."""
        ...

    def init(self, key: Any) -> Any:
        """Initialize the state where the plan puts it."""
        ...

    def traced_init(self, key: Any) -> Any:
        """Return the trace of init, to be compared with another; None if there is none."""
        ...

    def compiled_trace(self) -> Any:
        """Return the trace that is compiled; None if the step is traced anew for its mode."""
        ...

    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the step: one program, or one for each group of devices."""
        ...

    def lowered_trace(self) -> Any:
        """Return the jaxpr of what is lowered, traced anew; None if there are several programs."""
        ...

    def per_shard(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap a function of state and batch that runs the step: what XLA does not split of it runs on shards."""
        ...

    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile what `lower` returned."""
        ...

    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], Any]:
        """Return what a call runs: from state and batch to the new state and outputs, or outputs alone."""
        ...

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the step is traced."""
        ...
