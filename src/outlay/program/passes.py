"""What changes a step before it is compiled: one ordered tuple of passes, each imported only where it is wanted.

A step that wants none is compiled as its user wrote it. A new pass is a file and a line in `PASSES`. The file has
`wrap(step, planned)`, and may have `check(planned)`, which raises for what the pass cannot do here. Passes nearer to
the user's step come first.

What the mode means for a step follows from the passes that it asks for:

* `auto`: XLA partitions the step; the layout says where arrays live before and after it. Gradients of microbatches,
  those of a pipeline too, are added up on each device, and summed over devices once (`summed_once.py`).
* `manual`: collectives written by hand. For a step that says where it sums over its batch (`outlay.train_step` does),
  gradients are taken device by device (`manual_gradients.py`), and the rest, the optimizer's update, stays automatic:
  with the whole step on shards, an optimizer that takes the global norm would see one device's shards only. Any other
  step runs as a whole on each device's shards (`manual_step.py`) and shares what it must with `jax.lax` collectives
  over the mesh's axes. A graph loop is split by the rows of its parts (`by_rows.py`).
* `placed`: each part of a graph loop is a program on its own devices (`placed_graph.py`), or each stage of a pipeline
  (`placed_stages.py`); in one program, stages work in the same order (`staged_gradients.py`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import shardings
from outlay.core.jax_tracing import operations
from outlay.core.primitives import KINDS, NOT_SPLIT
from outlay.devices.mesh_info import is_explicit
from outlay.layout.layout import Layout
from outlay.program.abstract import Traced
from outlay.program.modes import Mode, Step

# Before 0.12, XLA computes the second of two cumulative operations along a split dim with the first one's.
_MIXES_CUMULATIVE = jax.__version_info__ < (0, 12)


def not_split(jaxpr: Any) -> frozenset[str]:
    """Return the names of the operations of a traced program that need a place over devices of their own."""
    names = {eqn.primitive.name for eqn in operations(jaxpr)}
    cumulative = names & KINDS["cumulative"]
    return frozenset(names & NOT_SPLIT | (cumulative if _MIXES_CUMULATIVE and len(cumulative) > 1 else set()))


@dataclass(frozen=True)
class Planned:
    """What passes know of the program whose step they change.

    Attributes:
        step: the user's step.
        mode: how it is executed.
        mesh: its mesh.
        layout: its rules.
        plan: a `Plan`, where every leaf lives; None before the trace.
        traced: what the trace of the step has found.
        shapes: state and batch as shapes.
        is_split_by_rows: whether the step is a graph's, which speaks of the devices itself.
        returns_state: whether the step returns a new state.
        schedule: in which order the stages of a pipeline work in mode placed, a `StageSchedule`; None elsewhere.
        notes: what passes say of their work, by the name of the pass; known once the step is traced with them.
    """

    step: Step
    mode: Mode
    mesh: Mesh
    layout: Layout
    plan: Any = None
    traced: Traced = field(default_factory=Traced)
    shapes: tuple[Any, Any] = (None, None)
    is_split_by_rows: bool = False
    returns_state: bool = True
    schedule: Any = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def is_placed_by_xla(self) -> bool:
        """Whether XLA alone decides where values inside the step live."""
        return self.mode == "auto" and self.mesh.size > 1 and not is_explicit(self.mesh)

    @property
    def runs_on_shards(self) -> bool:
        """Whether the whole step runs on each device's shards."""
        return self.mode == "manual" and not self.is_split_by_rows and not self.traced.sums_over_batch

    @property
    def has_pipelines(self) -> bool:
        """Whether a rule has layers run as a pipeline, on more stages than one."""
        return any(self.mesh.shape[axis] > 1 for axis in self.layout.stage_axes)

    @property
    def has_unlimited_experts(self) -> bool:
        """Whether the step takes tokens to experts without a limit, by the name that `outlay.experts` gives them."""
        return "expert_tokens.by_device" in self.traced.intermediates

    @property
    def multiplies_in_fp8(self) -> bool:
        """Whether a rule has parameters multiplied in FP8."""
        return self.layout.multiplies_in_fp8

    @property
    def splits_tokens(self) -> bool:
        """Whether a rule has attention computed with its tokens split, over more devices than one."""
        return any(self.mesh.shape[axis] > 1 for axis in self.layout.context_axes)

    @property
    def constrains(self) -> bool:
        """Whether the step or a rule says where values inside of the step, or its outputs, live."""
        traced = self.traced
        return bool(traced.required_names or traced.specs) or any(leaf.is_placed for leaf in self._inside)

    @property
    def stores(self) -> bool:
        """Whether a rule says how a value inside of the step is stored for the backward pass."""
        return any(leaf.stored for leaf in self._inside)

    @property
    def has_state_on_host(self) -> bool:
        """Whether a leaf of the state lives in the memory of the host."""
        return any(leaf.stored == "host" for leaf in self.plan.state)

    @functools.cached_property
    def not_split(self) -> frozenset[str]:
        """The names of the operations that need a place over devices of their own."""
        return frozenset() if self.traced.jaxpr is None else not_split(self.traced.jaxpr)

    @property
    def _inside(self) -> Any:
        return self.plan.of_kind("intermediate")

    @property
    def passes(self) -> tuple[str, ...]:
        """The names of the passes that the program needs, in their order."""
        return tuple(one.name for one in PASSES if one.is_wanted(self))

    def shardings(self) -> tuple[Any, Any]:
        """Return where state and batch live, as trees of shardings."""
        state, batch = self.shapes
        return shardings(self.plan, state, self.mesh), shardings(self.plan, batch, self.mesh, root="batch")

    def in_mode(self, mode: Mode) -> Planned:
        """Return the same in another mode, with notes of its own; a graph is not split by rows there."""
        return replace(self, mode=mode, is_split_by_rows=False, notes={})


@dataclass(frozen=True)
class Pass:
    """A change of a step.

    Attributes:
        name: its module in `outlay.program`; behind a colon the function there, if it is not `wrap`.
        is_wanted: whether a program needs it.
        is_checked: whether its `check`, if it has one, has something to look at.
        is_traced: whether the trace has to see it, since it makes values known to rules.
        traces_anew: whether the step's own Python has to run inside of it; within others its trace can be replayed.
        refuses_in_trace: whether it raises for what it cannot do while the step is traced with it, and not before.
        is_around: whether it changes only what the compiled program is beside the step, and nothing that the step
            computes.
    """

    name: str
    is_wanted: Callable[[Planned], bool]
    is_checked: Callable[[Planned], bool] = lambda of: True
    is_traced: bool = False
    traces_anew: bool = False
    refuses_in_trace: bool = False
    is_around: bool = False

    def check(self, planned: Planned) -> None:
        """Raise for what it cannot do in this program."""
        check = getattr(self._module, "check", None) if self.is_checked(planned) else None
        if check is not None:
            check(planned)

    def wrap(self, step: Step, planned: Planned) -> Step:
        """Return a step with this change."""
        return getattr(self._module, self.name.partition(":")[2] or "wrap")(step, planned)

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"outlay.program.{self.name.partition(':')[0]}")


def _has_parts(of: Planned) -> bool:
    return of.traced.num_microbatches > 1 or (of.has_pipelines and of.traced.sums_over_batch)


def _requires_places(of: Planned) -> bool:
    return bool(of.traced.required_names or of.traced.specs)


PER_SHARD = (
    Pass("per_shard_operations", lambda of: of.is_placed_by_xla and bool(of.not_split), is_around=True),
    Pass(
        "explicit_transforms", lambda of: is_explicit(of.mesh) and bool(KINDS["Fourier"] & of.not_split), is_around=True
    ),
)
"""They take any function of state and batch that runs the step, whatever else that returns."""

PASSES = (
    Pass("by_source", lambda of: any(rule.is_of_value for rule in of.layout), is_traced=True),
    Pass("fp8_products", lambda of: of.multiplies_in_fp8, traces_anew=True, refuses_in_trace=True),
    Pass("split_attention", lambda of: of.splits_tokens, traces_anew=True, refuses_in_trace=True),
    Pass("pipelining", lambda of: of.has_pipelines and of.mode != "placed", traces_anew=True, refuses_in_trace=True),
    Pass("staged_gradients", lambda of: of.has_pipelines and of.mode == "placed", traces_anew=True),
    Pass("expert_shards", lambda of: of.is_placed_by_xla and of.has_unlimited_experts, traces_anew=True),
    Pass("constraints", lambda of: of.constrains or of.stores, _requires_places, traces_anew=True),
    Pass("manual_step", lambda of: of.runs_on_shards, traces_anew=True),
    Pass("rematerialization", lambda of: of.stores, traces_anew=True),
    Pass("manual_gradients", lambda of: of.mode == "manual" and of.traced.sums_over_batch, traces_anew=True),
    Pass("summed_once", lambda of: of.is_placed_by_xla and _has_parts(of), traces_anew=True),
    Pass("host_state:fetch", lambda of: of.has_state_on_host),
    *PER_SHARD,
    Pass("host_state:send", lambda of: of.has_state_on_host and of.returns_state, is_around=True),
)


def passes_of(planned: Planned, *, before_trace: bool = False) -> list[Pass]:
    """Return the passes that a program needs, in order: those before the trace, or those after it."""
    return [one for one in PASSES if one.is_traced == before_trace and one.is_wanted(planned)]


def check(planned: Planned, passes: Iterable[Pass]) -> None:
    """Raise for what passes cannot do in a program."""
    for one in passes:
        one.check(planned)


def wrapped(step: Step, planned: Planned, passes: Iterable[Pass]) -> Step:
    """Return a step changed by passes, one after the other."""
    for one in passes:
        step = one.wrap(step, planned)
    return step
