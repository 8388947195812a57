"""`outlay.estimate`: how long a step would take on a target, without running it."""

from __future__ import annotations

from typing import Any

from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import schedule_of
from outlay.analysis.work.compiled import compiled_work
from outlay.core.error_types import ExplainError
from outlay.devices.target import Target
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation


def estimate(x: Any, *args: Any, target: Target | str | None = None) -> Estimate:
    """Estimate the time of a step, with a range around it and everything that it assumes.

    The compiled program says what each device computes, reads, writes and exchanges, in what order, and what runs
    behind what; the target says how fast it can.
    Nothing is run. An `Explanation` that is there already saves compiling again.

    Args:
        x: a program, a jitted function, what `outlay.explain` returned, or anything else that `outlay.explain` takes.
        *args: of a jitted function its arguments, as arrays or `jax.ShapeDtypeStruct`.
        target: the hardware, such as `"h100:32x8"`; without it the one that the program's mesh was made for, or stands
            on.

    Raises:
        ExplainError: it is no program, nothing says for what hardware, or that has another number of devices.
        TargetError: there is no such target.

    Example:
        >>> def step(state, batch):
        ...     return {"w": state["w"] - 0.1 * (batch.T @ batch)}, {}
        >>> program = outlay.program(
        ...     step, lambda key: {"w": jax.random.normal(key, (64, 64))}, np.ones((128, 64), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> found = outlay.estimate(program, target="h100:1x8")
        >>> found.dominated_by, found.seconds == sum(found.parts.values())
        ('communication', True)
    """
    wanted = Target.parse(target) if isinstance(target, str) else target
    found = x if isinstance(x, Explanation) else explain(x, *args, target=wanted)
    if found.by_parts is not None:
        raise ExplainError(
            "a program in mode placed has no estimate as a whole: its parts run side by side, each waiting for others\n"
            "  fix: outlay.explain(program), which estimates each part and what they exchange; or outlay choose, "
            "which measures"
        )
    if found.hlo is None:
        raise ExplainError(f"{found.name}: the compiler gave up, so there is no program to estimate\n{found}")
    if found.estimate is not None and wanted in (None, found.target):
        return found.estimate
    return price(schedule_of(found.hlo, compiled_work(found.hlo), wanted, found.mesh))
