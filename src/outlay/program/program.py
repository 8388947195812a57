"""The compiled program: a step with its plan and mesh. What is reported is what runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from operator import eq, is_
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from outlay.arrays.init_sharded import memory_problems
from outlay.core.as_written import AsWritten
from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import flatten_like
from outlay.core.jax_compat import call_over_leaves, deleted_check, is_deleted, load_no_programs_of_several_cpu_devices
from outlay.core.jax_tracing import is_tracing
from outlay.core.public_names import called_as
from outlay.devices.mesh_info import check_runnable, processes_of
from outlay.layout.layout import Layout
from outlay.program.abstract import OnlyReads, as_key, name_of
from outlay.program.compiler_options import RequestedOptions
from outlay.program.execution import Executed, check_outputs, only_part, run_first, wait_for_others, way_to_execute
from outlay.program.modes import Mode, Step
from outlay.program.passes import PER_SHARD, passes_of, wrapped
from outlay.program.program_arguments import (
    check_arguments,
    check_jit_enabled,
    check_mode,
    is_graph_loop,
    take_arguments,
    with_history,
    without_shared_memory,
)
from outlay.program.states import States
from outlay.render.report import Report

if TYPE_CHECKING:
    from outlay.render.page import Page


_SMALL = 2**22
"""Bytes on a device up to which a state stays in memory until the next call, though its user may have let go of it."""


class Program(Executed, States, Report):
    """A step laid out over a mesh; make one with `outlay.program`.

    Attributes:
        step: the user's pure function `step(state, batch) -> (state, outputs)`; if it only reads, that state is None.
        written: step and init as they were given.
        donate: whether a call uses up the state and returns the next one.
        mesh: the mesh it runs on.
        layout: the rules it was planned with.
        mode: how it is executed, `auto`, `manual` or `placed`.
        has_manual_collectives: whether its collectives are written by hand rather than by the compiler.
    """

    def __init__(
        self,
        step: Step,
        init: Callable[[Any], Any],
        inputs: Any,
        layout: Layout,
        mesh: Mesh,
        mode: Mode = "auto",
        options: RequestedOptions = "preset",
        *,
        donate: bool = True,
        written: AsWritten | None = None,
        schedule: Any = None,
    ) -> None:
        check_arguments(step, init, mesh)
        check_mode(mode, mesh)
        check_jit_enabled()
        load_no_programs_of_several_cpu_devices()  # the mesh may have been made without Outlay
        if not donate and mode != "auto":
            raise ProgramError(
                f"donate=False with mode {mode}: a step that only reads runs in mode auto\n  fix: leave out mode="
            )
        self.step: Step = step if donate else OnlyReads(step)
        self.written = written or AsWritten(step, init)
        self.donate, self.mesh, self.layout = donate, mesh, layout
        self.mode: Mode = mode
        self.has_manual_collectives = mode == "manual"
        self._makes = with_history(init, layout)
        execution = way_to_execute(
            step, self._makes, inputs, layout, mesh, mode, options, donate=donate, schedule=schedule
        )
        self._execution = execution
        here = functools.partial(Program, mesh=mesh, mode=mode, donate=donate, schedule=schedule)
        self._again = functools.partial(
            here, step=step, init=init, inputs=inputs, layout=layout, options=options, written=written
        )
        self._of_flags: list[Program] = []
        self._run: Callable[[Any, Any], Any] = self._first_run
        self._returned: list[Any] = []  # the leaves of the state that the last call returned; of a large one their ids
        self._repeated: tuple[Any, ...] | None = None  # what a call does with the state that the last one returned
        self._is_agreed = False

    @called_as("state = program.init(jax.random.key(0))", seed="jax.random.key(seed)", rng="key=")
    def init(self, key: Any) -> Any:
        """Initialize the state directly where the plan puts it: no device ever holds a split leaf whole.

        Args:
            key: the PRNG key that the init function takes, as `jax.random.key` or `jax.random.PRNGKey` makes them.

        Raises:
            ProgramError: the mesh has compile-only devices, or its processes are about to run different programs; or
                this is not a key, or a key of another kind, which makes a different state.
        """
        check_runnable(self.mesh, "a state cannot be made")
        if is_tracing():
            from outlay.program.diagnose import traced_call_error

            raise traced_call_error("program.init")
        check_jit_enabled()
        key = as_key(key)
        self.check_memory()
        self.agree(key=key)
        self._execution.check_key(key)
        wait_for_others("init", self.step, self.mesh)
        # Wait, so that it is init that fails where it does, and not the first step.
        return jax.block_until_ready(self._execution.init(key))

    def with_layout(self, layout: Layout) -> Program:
        """Make a program of the same step on the same mesh under another layout; it is planned, not yet compiled."""
        return self._again(layout=layout)

    def with_batch(self, inputs: Any) -> Program:
        """Make a program of the same step for other batch shapes, such as longer sequences; it shares the state."""
        return self._again(inputs=inputs)

    def with_compiler_options(self, options: RequestedOptions) -> Program:
        """Make a program of the same step for a compiler that is asked for other options."""
        return self._again(options=options)

    def with_step(self, step: Step, init: Callable[[Any], Any], inputs: Any) -> Program:
        """Make a program of another step under the same layout, on the same mesh and in the same mode."""
        return self._again(step=step, init=init, inputs=inputs, written=None)

    def step_in(self, mode: Mode, *, as_compiled: bool = False) -> Step:
        """Return the step as a mode runs it under this program's plan.

        Args:
            mode: the mode.
            as_compiled: whether with what the compiled program does around the step, which changes no number.

        Raises:
            ProgramError: there is no such mode, or not on this mesh.
        """
        check_mode(mode, self.mesh)
        planned = self._execution.planned.in_mode(mode)
        passes = [one for one in passes_of(planned) if as_compiled or not one.is_around]
        return wrapped(self.step, planned, [*passes_of(planned, before_trace=True), *passes])

    @property
    def sums_over_batch(self) -> bool:
        """Whether the step says where it sums over its batch, so that its gradients can be taken apart from it."""
        return self._execution.sums_over_batch and not self.is_graph

    @property
    def why_no_source_rules(self) -> str:
        """What keeps the layout from naming values of the step by their source, in words; empty if nothing does."""
        from outlay.program.by_source import why_no_source_rules

        return why_no_source_rules(self.step, self.mode, self.mesh)

    def check_memory(self) -> None:
        """Raise if the state needs more than the memory of this machine, before any of it is made.

        Raises:
            ProgramError: it does; the message names its largest leaves.
        """
        fix = "a smaller array, or a layout that splits it over more machines"
        if too_much := memory_problems(self.plan, self.mesh, fix):
            raise ProgramError(*too_much)

    def __call__(self, state: Any, batch: Any) -> Any:
        """Run one step. The state is donated: its memory becomes the new state's, so it cannot be used again.

        A program made with `donate=False` leaves the state as it is, and returns the step's outputs alone.

        If one array is in the state twice, or in state and batch, it is copied first.

        Args:
            state: the state, as `init` or the last call returned it.
            batch: the global batch, host or device arrays, of the shapes given at the start.

        Returns:
            The new state, placed as planned, and the step's outputs.

        Raises:
            ProgramError: the state was used already; or state or batch are not as planned, or hold what JAX cannot
                (text, masked values, integers beyond 32 bits), with every such leaf; or the mesh has compile-only
                devices.
        """
        try:
            if (repeated := self._repeated) is not None:
                flatten, is_gone, run, unflatten, returned = repeated
                try:
                    leaves = flatten((state, batch))
                    is_next = all(map(is_, returned, leaves)) and True not in map(is_gone, leaves)
                except (AttributeError, TypeError, ValueError):  # a host array, or another structure
                    is_next = False
                # Each microsecond here is three of every call, since XLA's threads have emptied the caches in between:
                # so it is one frame, flattens once, and asks little of each leaf. Changing the list in place avoids
                # `__setattr__`.
                if is_next:
                    leaves, outputs = run(leaves)
                    returned[:] = leaves
                    return unflatten(leaves), outputs
            return self._run_checked(state, batch)
        except ProgramError:  # it says already what is wrong
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            from outlay.program.diagnose import diagnose, traced_call_error

            if is_tracing():
                raise traced_call_error("a program") from error
            if (other := self._with_other_flags(state)) is not None:
                program, state = other
                return program(state, batch)
            problem = diagnose(state, batch, (self.state_shapes, self.batch_shapes), self.plan, self.mesh)
            if problem is None:
                raise
            raise problem from error

    def __repr__(self) -> str:
        name, num = name_of(self.step), len(self.plan.of_kind("state"))
        return f"<{type(self).__name__} of {name}: {num} leaves of state on {self.plan.mesh}, mode {self.mode}>"

    def _page(self) -> Page:
        return replace(self.plan._page(), title=f"{name_of(self.step)} in mode {self.mode}", headline=repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: its mode and its plan."""
        return {"mode": self.mode, "plan": self.plan.to_dict()}

    __str__ = __repr__

    def __setattr__(self, name: str, value: Any) -> None:
        is_fact = name in vars(self) or isinstance(getattr(Program, name, None), property | functools.cached_property)
        if is_fact and not name.startswith("_"):
            raise ProgramError(
                f"program.{name} cannot be changed: plan and compiled step depend on it"
                f"\n  fix: make another program: outlay.program(..., {name}=...)"
            )
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ProgramError(
            "a program cannot be copied or pickled: it is compiled for devices of this process"
            "\n  fix: pass on its step, init, layout and mesh's axes, and make it again with outlay.program; "
            "plan.to_json() and outlay.Checkpoints keep plan and state"
        )

    def gather(self, state: Any) -> Any:
        """Fetch a state, or a part of one, as NumPy of the shapes of a single-device run; every process calls it."""
        from outlay.program.gather_state import gather_state

        return gather_state(self.plan, self.mesh, self.device_groups, self.crop, state)

    @functools.cached_property
    def lowered_parts(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the step; in mode placed one for each of `device_groups`."""
        return self._execution.lower()

    @functools.cached_property
    def compiled_parts(self) -> tuple[jax.stages.Compiled, ...]:
        """Compile `lowered_parts`: exactly what a call runs."""
        return self._execution.compile(self.lowered_parts)

    @property
    def lowered(self) -> jax.stages.Lowered:
        """Return the step lowered for the mesh; with several device groups see `lowered_parts`."""
        return only_part("lowered", self.lowered_parts, self.mode)

    @property
    def returned_outputs(self) -> Any:
        """The outputs that a call returns, as shapes and dtypes."""
        return self.output_shapes if self.schedule is not None else self.lowered.out_info[1]

    @property
    def compiled(self) -> jax.stages.Compiled:
        """Return the compiled step, exactly what a call runs; with several device groups see `compiled_parts`."""
        return only_part("compiled", self.compiled_parts, self.mode)

    @property
    def is_graph(self) -> bool:
        """Whether its step is a `GraphLoop`, which runs many steps of a graph in one call."""
        return is_graph_loop(self.step)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiler has run; reading `compiled_parts` runs it."""
        return "compiled_parts" in vars(self)

    def per_shard(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap a function of state and batch that runs the step: what XLA does not split of it runs on shards."""
        planned = self._execution.planned
        return wrapped(function, planned, [one for one in PER_SHARD if one.is_wanted(planned)])

    def agree(self, **config: Any) -> None:
        """Have all processes of the mesh compare this program, once, before any of them runs it.

        `init`, the first call and `outlay.fit` do so by themselves. It uses no device, and does nothing in one process.

        Args:
            config: what else must be the same in all of them, by name, such as a seed.

        Raises:
            ProgramError: in every process, if they differ in config, in shapes and dtypes of state or batch, or in
                the lowered program; it says which process differs, where, and how. Or some have not arrived in time.
        """
        if self._is_agreed:
            return
        if processes := processes_of(self.mesh):
            from outlay.program.consistency import check_agreement, facts_of

            check_runnable(self.mesh, "a step cannot run")
            # Before the compiler, which may itself wait for other processes.
            settings = {"mode": self.mode, "mesh": self.plan.mesh, "compiler options": self.compiler_options}
            rules = {f"rule {number}": rule for number, rule in enumerate(self.layout, 1)}
            shapes = {"state": self.state_shapes, "batch": self.batch_shapes}
            facts = facts_of(self.step, shapes, self._execution.compared(self.lowered_parts), config | settings | rules)
            check_agreement(facts, processes)
        self._is_agreed = True

    def _run_checked(self, state: Any, batch: Any) -> Any:
        """Run a step on a state that the last call did not return, or a batch that has to be taken to the devices."""
        leaves = is_used = None
        try:
            leaves = self._flatten((state, batch))
            is_used = any(map(is_deleted, leaves))
        except (AttributeError, ValueError):
            pass  # a host array, or another structure: to ask each leaf for its type would double the call's cost
        if leaves is None or is_used is None:
            state, batch = take_arguments(state, batch)
            leaves = self._flatten((state, batch))
            is_used = any(leaf.is_deleted() for leaf in leaves if isinstance(leaf, jax.Array))
        # JAX 0.10.2 on CPU crashes the process when a donated array is passed again, so look first.
        if is_used:
            from outlay.program.diagnose import donated_error

            raise donated_error(state, batch)
        return self._run_donating(state, batch, leaves) if self.donate else self._run(state, batch)

    def _run_donating(self, state: Any, batch: Any, leaves: list[Any]) -> Any:
        """Run a step that donates its state; no memory may be donated twice, or belong to the batch as well.

        What the last call returned shares no memory, so only other states are searched.
        """
        returned, is_small = self._returned, self._is_small
        is_next = all(map(is_, returned, leaves) if is_small else map(eq, returned, map(id, leaves)))
        if not returned or not is_next or self._batch_is_like_state:
            state, batch = without_shared_memory(state, batch)
        result = self._run(state, batch)
        after = jax.tree.leaves(result[0])
        returned[:] = after if is_small else map(id, after)
        return result

    @functools.cached_property
    def _is_small(self) -> bool:
        """Whether the arrays of the last state may stay in memory until the next call, which knows them by that."""
        return max(self.plan.bytes_per_device.values(), default=0) <= _SMALL

    @functools.cached_property
    def _flatten(self) -> Callable[[Any], list[Any]]:
        return flatten_like((self.state_shapes, self.batch_shapes))

    @functools.cached_property
    def _batch_is_like_state(self) -> bool:
        """Whether a leaf of the state has the shape and dtype of one of the batch."""
        state, batch = (
            {(x.shape, x.dtype) for x in jax.tree.leaves(t)}
            for t in (self._execution.state_shapes, self._execution.batch_shapes)
        )
        return not state.isdisjoint(batch)

    def _first_run(self, state: Any, batch: Any) -> Any:
        """Compare, compile, run, and check once that the state came back where the plan says; then step aside."""
        check_runnable(self.mesh, "a step cannot run")
        check_jit_enabled()
        self.agree()
        wait_for_others("step", self.step, self.mesh)
        run = self._execution.runner(self.compiled_parts)
        result = run_first(run, state, batch)
        if self.donate:
            check_outputs(result[0], self.plan, self.mesh)
            # With nodes of users' own classes there is Python around the compiled step.
            is_bare = any(run is compiled for compiled in self.compiled_parts) and not self._batch_is_like_state
            if is_bare and self._is_small and (over_leaves := call_over_leaves(self.compiled_parts[0])):
                is_gone = deleted_check([*jax.tree.leaves((self.state_shapes, self.batch_shapes))])
                self._repeated = self._flatten, is_gone, *over_leaves, self._returned
        self._run = run
        return result
