"""Compile a step as one program over the whole mesh: automatic, explicit, manual, or a graph by rows."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.arrays.shardings import shardings
from outlay.core.array_leaves import placed_by_plan
from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import users_nodes
from outlay.core.jax_compat import is_compile_only
from outlay.core.jax_tracing import fresh_traces, settings
from outlay.devices.mesh_info import is_explicit
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout, sample_axes
from outlay.layout.plan import Plan
from outlay.program.abstract import (
    OnlyReads,
    Traced,
    abstract_init,
    abstract_inputs,
    abstract_step,
    between_users_nodes,
    name_of,
    named,
)
from outlay.program.compiler_options import CompilerOptions, RequestedOptions, compile_with, compiler_options
from outlay.program.modes import Mode, Step
from outlay.program.passes import PER_SHARD, Planned, check, not_split, passes_of, wrapped
from outlay.program.program_arguments import is_graph_loop
from outlay.program.trace_on_mesh import check_named_devices, explaining_mesh_errors, in_context, on_mesh

if TYPE_CHECKING:
    from outlay.graph.rows import Rows
    from outlay.program.device_group import DeviceGroup


class OneStep:
    """Executes a program in modes auto and manual; see the protocol `Execution`."""

    device_groups: tuple[DeviceGroup, ...] = ()
    sends_batch = False

    def __init__(
        self,
        step: Step,
        init: Callable[[Any], Any],
        inputs: Any,
        layout: Layout,
        mesh: Mesh,
        mode: Mode,
        options: RequestedOptions,
        *,
        donate: bool,
    ) -> None:
        # What a user asks for must exist; a preset does, and is read by whoever compiles.
        self._options = None if options == "preset" else compiler_options(options, mesh)
        planned = Planned(step, mode, mesh, layout)
        before_trace = passes_of(planned, before_trace=True)
        check(planned, before_trace)
        step = wrapped(step, planned, before_trace)
        user_step = step if donate else OnlyReads(step)
        split = None
        if layout.row_axes or is_graph_loop(user_step):
            from outlay.program.by_rows import by_rows

            split = by_rows(user_step, init, layout, mesh, mode)
        self.rows: tuple[Rows, ...] = (split.rows,) if split else ()
        self.step: Step = split or user_step
        self._name, self._donate, self._mesh = named(user_step), donate, mesh
        self._mode: Mode = mode
        if split:
            init, layout = split.init, split.layout
        # In the context of the mesh, models may name its axes in their own constraints.
        enter = functools.partial(jax.set_mesh, mesh)
        with explaining_mesh_errors(f"init {name_of(init)}", mesh):
            traced_init = functools.partial(_state_shapes, init, mesh)
            self.state_shapes, self._inits_in_mesh = in_context(enter, traced_init, whatever_fails=True)
        self.batch_shapes = abstract_inputs(inputs)
        # Before the trace, in which attention asks for it: the compiler cannot split its kernel for TPUs.
        is_asked = planned.is_placed_by_xla and mesh.devices.flat[0].platform == "tpu"
        self._sample_axes = sample_axes(layout, self.batch_shapes, mesh) if is_asked else None
        missed: list[str] = []
        self.num_steps_at_once = 1
        if is_graph_loop(step):
            from outlay.graph.graph_loop import count_steps

            self.num_steps_at_once = count_steps(self.batch_shapes)
        with explaining_mesh_errors(named(self.step), mesh, mode):
            traced, self.steps_in_mesh = in_context(enter, functools.partial(self._trace, mode, missed))
        _check_leaks(traced.jaxpr, self.step, named(self.step))
        check_named_devices(traced.jaxpr, named(self.step), mesh)
        self.named_shapes: dict[str, Any] = traced.intermediates
        self.output_shapes: Any = traced.intermediates.get(OUTPUTS)
        shapes = (self.state_shapes, self.batch_shapes)
        self.sums_over_batch = traced.sums_over_batch
        self.runs_per_shard = traced.runs_per_shard and not split
        self.is_exact = bool(split)
        if traced.runs_per_shard:
            from outlay.program.manual_step import plan_per_shard

            self.plan: Plan = plan_per_shard(layout, self.step, *shapes, mesh)
        else:
            self.plan = layout.plan(shapes[0], mesh, batch=shapes[1], intermediates=traced.intermediates)
        if any(leaf.device_ids != self.plan.mesh.device_ids for leaf in self.plan):
            from outlay.program.diagnose import check_devices

            check_devices(self.plan)
        self._traced = traced
        self.planned = Planned(
            planned.step,
            mode,
            mesh,
            layout,
            self.plan,
            traced,
            shapes,
            is_split_by_rows=bool(split),
            returns_state=donate,
        )
        self._passes = passes_of(self.planned)
        check(self.planned, self._passes)
        if self.runs_per_shard or any(one.refuses_in_trace for one in self._passes):
            self._check_traced()
        # Rules for values inside may give a kernel what it needs: a step that is traced anew warns then, if at all.
        for text in dict.fromkeys(missed) if self._is_as_traced else ():
            warnings.warn(text, stacklevel=4)
        self._user_init = init
        self._key_dtype = jax.eval_shape(lambda: jax.random.key(0)).dtype

    @property
    def compiler_options(self) -> CompilerOptions:
        """What the compiler is asked for besides its defaults; once compiled, what it took."""
        if self._options is None:
            self._options = compiler_options("preset", self._mesh)
        return self._options

    @functools.cached_property
    def _init(self) -> Callable[[Any], Any]:
        from outlay.arrays.init_sharded import init_sharded

        is_placed = self.planned.is_placed_by_xla or self._mode == "placed"
        instead = self._init_per_shard if is_placed else None
        return init_sharded(self._user_init, self.state_shapes, self.plan, self._mesh, instead)

    def _check_traced(self) -> None:
        """Trace a step with its passes, so that what is wrong with it there is said at once."""
        run = wrapped(self.step, self.planned, self._passes)
        with explaining_mesh_errors(self._name, self._mesh, self._mode), self.context(), fresh_traces():
            jaxpr = jax.make_jaxpr(run)(self.state_shapes, self.batch_shapes)
        _check_leaks(jaxpr, self.step, self._name)

    @property
    def traced_step(self) -> Any:
        """The traced step, on whole arrays; None if it only makes sense on shards, or rows are padded."""
        return None if self.rows else self._traced.jaxpr

    def check_key(self, key: Any) -> None:
        """Raise for a key that makes a state with other leaves than the plan has, such as keys of its own kind."""
        if key is None or key.dtype == self._key_dtype:
            return
        from outlay.arrays.check_arrays import leaf_differences

        with self._context(self._inits_in_mesh):
            shapes = abstract_init(self._user_init, jax.ShapeDtypeStruct((), key.dtype))
        problems = leaf_differences(shapes, self.plan.state)
        if problems:
            impl = jax.random.key_impl(key)
            raise ProgramError(
                f"init makes a different state from a key of another kind: this key is {key.dtype}, and the program "
                f"was planned for {self._key_dtype}\n"
                + "\n".join(f"  {problem.where}: {problem.what}" for problem in problems)
                + "\n  fix: jax.random.key(seed); or, before the program is made, "
                f"jax.config.update('jax_default_prng_impl', '{impl}')"
            )

    def init(self, key: Any) -> Any:
        """Initialize the state, each leaf directly where the plan puts it."""
        # A key committed to one device would make jit refuse: init runs on all devices of the mesh.
        if isinstance(key, jax.Array) and key.committed:
            key = jax.device_put(key, NamedSharding(self._mesh, PartitionSpec()))
        with explaining_mesh_errors("init", self._mesh), self._context(self._inits_in_mesh):
            try:
                return users_nodes(self._init(key))
            except TypeError as error:
                if key is not None:
                    raise
                raise ProgramError("init draws from its key, but the key is None\n  fix: jax.random.key(0)") from error

    def traced_init(self, key: Any) -> Any:
        """Return the trace of init, to be compared with another; None if operations of it run on shards."""
        with self._context(self._inits_in_mesh), fresh_traces():
            traced = jax.make_jaxpr(lambda key: jax.tree.leaves(placed_by_plan(self._user_init, key)))(key)
        return None if not_split(traced) else traced

    def compiled_trace(self) -> Any:
        """Return the trace that is compiled; None if the step is traced anew for its mode."""
        is_changed = bool(self.rows) or not set(PER_SHARD).isdisjoint(self._passes)
        return self._traced.jaxpr if self._is_as_traced and not is_changed else None

    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the step for the mesh."""
        return (self._for_compiler(lambda jitted: jitted.lower),)

    def compared(self, lowered: Sequence[jax.stages.Lowered]) -> Sequence[jax.stages.Lowered]:
        """Return what all processes have to have alike: all of it."""
        return lowered

    def lowered_trace(self) -> Any:
        """Return the jaxpr of what `lower` lowers, traced anew."""
        return self._for_compiler(lambda jitted: jitted.trace).jaxpr

    def _for_compiler(self, stage: Callable[[Any], Callable[..., Any]]) -> Any:
        """Bring the step as it is compiled to a stage of JAX: a method of the jitted function."""
        mesh, shapes = self._mesh, (self.state_shapes, self.batch_shapes)
        state, batch = self.planned.shardings()
        step = self._traced.replaying(self.step) if self._is_as_traced else self.step
        run, results = wrapped(step, self.planned, self._passes), state
        if self.planned.has_state_on_host:
            from outlay.program.host_state import out_shardings, typed

            shapes, results = (typed(shapes[0], self.plan, mesh), shapes[1]), out_shardings(state)
        jitted = jax.jit(
            run,
            in_shardings=(state, batch),
            # The compiler decides where the outputs live.
            out_shardings=(results if self._donate else None, None),
            donate_argnums=0 if self._donate else (),
        )
        if is_explicit(mesh):
            from outlay.program.explicit import with_types

            typed_args = run, shapes, (state, batch), mesh
            with fresh_traces():
                return with_types(stage(jitted), *typed_args)
        return on_mesh(mesh, self._mode, stage(jitted), shapes, self._name, self.context)

    def _init_per_shard(self, jaxpr: Any) -> Callable[..., Any] | None:
        """Return a traced init as a function in which what XLA does not split runs on shards; None if it has none."""
        names = not_split(jaxpr)
        if not names:
            return None
        from outlay.program.per_shard_operations import per_shard_in

        return per_shard_in(jaxpr, shardings(self.plan, self.state_shapes, self._mesh), self._mesh, names)

    def _trace(self, mode: str, missed: list[str]) -> Traced:
        device, answers = self._mesh.devices.flat[0], contextlib.nullcontext()
        held: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext(missed)
        if device.platform != "cpu":  # where there are kernels to miss
            from outlay.core.jax_kernels import holding_missed_kernels

            held = holding_missed_kernels()
        if is_compile_only(device):
            from outlay.core.jax_kernels import as_if_attached

            answers = as_if_attached(device)
        with fresh_traces(), answers, self._for_attention(), held as texts:
            traced = abstract_step(self.step, self.state_shapes, self.batch_shapes, mode)
        missed[:] = texts
        return traced

    @property
    def _is_as_traced(self) -> bool:
        """Whether a second trace of the step would be the first one."""
        is_changed = is_explicit(self._mesh) or any(one.traces_anew for one in self._passes)
        return not is_changed and self._traced.settings == settings()

    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile the step, and note the options that the compiler took."""
        compiled, self._options = compile_with(lowered[0], self.compiler_options, self._mesh.devices.flat[0])
        return (compiled,)

    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], Any]:
        """Return the compiled step itself; for a step that only reads, its outputs.

        There is no Python around it, unless state, batch or outputs have nodes of the user's own classes.
        """
        (step,) = compiled
        run = step if self._donate else lambda state, batch: step(state, batch)[1]
        return between_users_nodes(run, step)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for tracing: the mesh, so that a model may name its axes, unless the step sets another."""
        context = contextlib.ExitStack()
        context.enter_context(self._context(self.steps_in_mesh))
        context.enter_context(self._for_attention())
        return context

    def _for_attention(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which attention knows how samples are split; it asks only on TPUs."""
        if self._sample_axes is None:
            return contextlib.nullcontext()
        from outlay.core.jax_kernels import splitting_samples

        return splitting_samples(self._sample_axes)

    def _context(self, in_mesh: bool) -> contextlib.AbstractContextManager[Any]:
        return jax.set_mesh(self._mesh) if in_mesh else contextlib.nullcontext()


def _check_leaks(jaxpr: Any, step: Step, name: str) -> None:
    """Raise if a traced step uses values of a trace that has ended."""
    if any(isinstance(value, Tracer) for value in getattr(jaxpr, "consts", ())):
        from outlay.program.leaked_values import check_no_leaked_values

        check_no_leaked_values(jaxpr, step, name)


def _state_shapes(init: Callable[[Any], Any], mesh: Mesh) -> Any:
    if not is_explicit(mesh):
        return abstract_init(init)
    from outlay.program.explicit import state_shapes

    return state_shapes(init, mesh)
