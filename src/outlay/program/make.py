"""Make a program from a step, a layout and a mesh, in any mode."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from outlay.core.as_written import AsWritten
from outlay.core.error_types import ProgramError
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.devices.build import mesh as make_mesh
from outlay.layout.layout import Layout
from outlay.program.abstract import over_arrays
from outlay.program.compiler_options import RequestedOptions
from outlay.program.modes import Mode, Step
from outlay.program.program import Program
from outlay.program.program_arguments import is_graph_loop, with_history, with_key

if TYPE_CHECKING:
    from outlay.schedules.stage_schedule import StageSchedule


@called_as(
    "outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=-1))",
    devices='mesh="data=-1" takes all devices, mesh="data=8" eight',
    batch="inputs, the third argument: a batch, or its shapes and dtypes",
    strategy="layout=",
    sharding="layout=",
    rules="layout=",
    target='mesh=outlay.mesh(..., target="h100:1x8")',
)
def program(
    step: Step,
    init: Callable[[Any], Any],
    inputs: Any,
    *,
    layout: Any,
    mesh: Mesh | str,
    mode: Mode = "auto",
    compiler_options: RequestedOptions = "preset",
    donate: bool = True,
    parts: Sequence[str] = (),
    schedule: StageSchedule | str | None = None,
) -> Program:
    """Lay a step out over a mesh.

    Args:
        step: pure function `step(state, batch) -> (state, outputs)` over any trees of arrays.
        init: pure function `init(key) -> state`, or `init() -> state` for one that draws nothing. It is compiled, so
            that the state is initialized sharded.
        inputs: an example of the global batch, as arrays or `jax.ShapeDtypeStruct`; only shapes and dtypes are read.
        layout: a `Layout`, or a list of rules.
        mesh: the mesh, as from `outlay.mesh`, or its text, such as `data=4,model=2`.
        mode: `auto` lets XLA partition the step. `manual` uses collectives written by hand: Outlay's, for a step from
            `outlay.train_step`; for any other step its own, since it then runs as a whole on each device's pieces. Its
            outputs are the same on every device, unless a rule for `outputs.**` says how they are split. A graph loop
            (`outlay.graph.GraphLoop`) in mode manual is split by rows (`outlay.layout.by_rows`). In mode `placed` its
            parts are programs of their own, each on its devices (`outlay.by_module`); so are the stages of a pipeline
            (`outlay.layout.pipeline`), which then work in the order of a schedule.
        compiler_options: what the compiler is asked for besides its defaults: `preset` is what published recipes set on
            such devices, `none` nothing; or options by name, or the name of a file with one `--name=value` a line.
        donate: whether a call uses up the state and returns the next one. With False the step only reads the state and
            returns its outputs alone, for evaluation and inference: `outputs = program(state, batch)`. Several such
            programs, and the one that trains, work on one state where init, layout and mesh are the same.
        parts: for a step that takes its state in parts, as many training loops do: names of them, such as
            `["params", "opt_state"]` for `init(key) -> (params, opt_state)` and `step(params, opt_state, batch) ->
            (params, opt_state, outputs)`. The state is a dictionary of the parts, whose names begin their paths.
        schedule: for a pipeline in mode `placed`, in which order its stages work: `gpipe`, `1f1b`, `interleaved`,
            `zb-h1`, or a schedule of `outlay.schedules`. By default `1f1b`; where the rule has repeats, `interleaved`.

    Returns:
        The program; its `plan` is ready, compiling waits for the first call.

    Raises:
        LayoutError: the layout does not fit the state and batch on this mesh.
        ProgramError: state or batch hold leaves that are not arrays; or the step does not return `(state, outputs)`
            with a state of the shapes it took; or step or init name devices outside the mesh; or a compiler option
            is unknown; or a schedule does not fit the pipeline.

    Example:
        >>> def step(state, batch):
        ...     return {"w": state["w"] - 0.1 * batch.mean()}, {"mean": batch.mean()}
        >>> program = outlay.program(
        ...     step, lambda key: {"w": jax.random.normal(key, (16, 4))}, np.ones((8, 3), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> state = program.init(jax.random.key(0))
        >>> state, outputs = program(state, np.ones((8, 3), np.float32))
        >>> float(outputs["mean"]), state["w"].sharding.spec
        (1.0, P('data', None))

        The same in parts, as the loop of a model of your own may have it:

        >>> def train(w, count, batch):
        ...     return w - 0.1 * batch.mean(), count + 1, {"mean": batch.mean()}
        >>> program = outlay.program(
        ...     train, lambda key: (jax.random.normal(key, (16, 4)), jnp.zeros((), int)), np.ones((8, 3), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh="data=8", parts=["w", "count"])
        >>> state, outputs = program(program.init(jax.random.key(0)), np.ones((8, 3), np.float32))
        >>> int(state["count"]), state["w"].sharding.spec
        (1, P('data', None))
    """
    mesh = make_mesh(mesh) if isinstance(mesh, str) else mesh
    init = with_key(init)
    written = AsWritten(step, init, tuple(parts))
    layout = Layout.of(layout)
    step, init = of_parts(step, init, parts)
    init = with_history(init, layout)
    objects = None
    # A graph loop is known by its class, and would be hidden in a wrapper.
    if not is_graph_loop(step):
        if "flax.nnx" in sys.modules and callable(step) and callable(init):  # the state may hold objects of NNX
            from outlay.program.functional_step import FunctionalStep

            objects = FunctionalStep(step, init, donate=donate)
            step, init = objects.step, objects.init
        step, init = over_arrays(step, init)
    made = Program(
        step,
        init,
        inputs,
        layout,
        mesh,
        mode,
        compiler_options,
        donate=donate,
        written=written,
        schedule=schedule,
    )
    if not (objects and objects.objects):
        return made
    from outlay.program.program_of_objects import ProgramOfObjects

    return ProgramOfObjects(made, objects)


def of_parts(step: Callable[..., Any], init: Callable[[Any], Any], names: Sequence[str]) -> tuple[Step, Any]:
    """Turn a step and an init whose state comes in parts into ones whose state is a dictionary of them.

    Args:
        step: the step.
        init: the init.
        names: the names of the parts; of none both are returned as they are.
    """
    if not names:
        return step, init
    if isinstance(names, str) or len(set(names)) != len(names):
        raise ProgramError(f"parts={names!r}: give one name a part, such as parts=['params', 'opt_state']")

    def named(function: Callable[..., Any], values: Any, num: int) -> tuple[Any, ...]:
        if not isinstance(values, tuple) or len(values) != num:
            got = counted(len(values), "value") if isinstance(values, tuple) else f"a {type(values).__name__}"
            also = ", and the outputs after it" if len(names) == 1 else ", and the outputs after them"
            these = "this part" if len(names) == 1 else f"these {len(names)} parts"
            raise ProgramError(
                f"parts={list(names)}: {getattr(function, '__name__', 'the function')} must return a tuple of "
                f"{these}{also if num > len(names) else ''}, and returned {got}"
                f"\n  fix: return {', '.join([*names, *(['outputs'] if num > len(names) else [])])}"
            )
        return values

    @functools.wraps(init, updated=())
    def init_of_parts(key: Any) -> Any:
        return dict(zip(names, named(init, init(key), len(names)), strict=True))

    @functools.wraps(step, updated=())
    def step_of_parts(state: Any, batch: Any) -> tuple[Any, Any]:
        *new, outputs = named(step, step(*(state[name] for name in names), batch), len(names) + 1)
        return dict(zip(names, new, strict=True)), outputs

    return step_of_parts, init_of_parts
