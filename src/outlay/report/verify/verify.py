"""`outlay.verify`: whether a program computes what one device computes, array by array."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax

from outlay.core.errors import ProgramError
from outlay.core.suggest import did_you_mean
from outlay.execute.program import Program
from outlay.execute.rollout import Rollout
from outlay.place.matching import refuse_mismatch
from outlay.report.verify.batches import MADE_UP, make_up, nudged, take
from outlay.report.verify.compare import compare
from outlay.report.verify.host import to_host
from outlay.report.verify.runs import Run, laid_out, one_device, other_mode
from outlay.report.verify.verification import Verification

Against = Literal["one-device", "auto", "manual"]

NUM_NUDGES = 4
"""Each gives the sign of a number that is nothing but rounding, such as Adam multiplies, one more chance to turn."""


def verify(
    program: Program, steps: int = 3, against: Against = "one-device", *, batches: Any = None, key: Any = None
) -> Verification:
    """Run a program and a reference on the same numbers, and compare all that they compute.

    Compared are the outputs, the new state and, for steps from `outlay.train_step`, the gradients (of the sum over the
    batch): the largest difference, and the ratio of norms, which names the usual mistakes. What is declared the same on
    several devices must be so bit for bit. Both start each step from the reference's state, so that rounding does not
    add up. How much rounding is allowed is measured: by dtype, and by how far the step's own results move when its
    inputs move by one unit in their last digit. For a rollout in mode manual or placed no rounding is allowed: its
    parts compute the same wherever they run, bit for bit. The proof makes its own state, and leaves the program as it
    was.

    Args:
        program: what to check.
        steps: how many steps.
        against: `one-device` runs the step on one device of the mesh; `auto` and `manual` run it under the same layout
            in that mode.
        batches: one batch a step, as an iterable or as `batches[step]`, such as a recipe's data. Without them, batches
            of the planned shapes are made up: floats normal, integers zero (any label or index exists), weights one.
        key: the PRNG key of the initial state; `jax.random.key(0)` if None.

    Returns:
        What was found. `raise_if_different()` turns a difference into an error.

    Raises:
        LayoutError: a batch is not of the planned shapes.
        ProgramError: the step cannot run in the reference's mode, there are too few batches, or there is nothing to
            compare.

    Example:
        >>> def step(state, batch):
        ...     return state - batch.mean(), {"mean": batch.mean()}
        >>> program = outlay.program(
        ...     step, lambda key: jnp.ones(8), np.ones((16, 2), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> outlay.verify(program).ok
        True
    """
    _refuse(program, steps, against)
    made = batches is None
    numbers = make_up(program.batch_shapes, steps, seed=0) if made else take(batches, steps)
    for batch in [] if made else numbers:
        refuse_mismatch(batch, program.plan.of_kind("batch"), "this program", root="batch")
    run, reference = laid_out(program), _reference(program, against)
    state = program.crop(to_host(program.init(jax.random.key(0) if key is None else key)))
    exact = isinstance(program.step, Rollout) and program.mode != "auto"
    checks = []
    for number, batch in enumerate(map(to_host, numbers), start=1):
        want = reference(state, batch)
        moved = [] if exact else [reference(*nudged((state, batch), seed)) for seed in range(NUM_NUDGES)]
        got = run(state, batch)
        checks += compare(number, state, got, want, moved, program.plan.mesh.axis_sizes, exact=exact)
        state = want.state
    where = f"mode {program.mode} on {program.plan.mesh}"
    with_ = "one device" if against == "one-device" else f"mode {against}"
    return Verification(where, with_, steps, MADE_UP if made else "given", tuple(checks))


def _reference(program: Program, against: Against) -> Run:
    return one_device(program) if against == "one-device" else other_mode(program, against)


def _refuse(program: Program, steps: int, against: str) -> None:
    if not isinstance(program, Program):
        raise ProgramError(
            f"outlay.verify takes a program, not a {type(program).__name__}\n"
            "  cure: outlay.verify(outlay.program(step, init, batch, layout=layout, mesh=mesh))"
        )
    if against not in get_args(Against):
        raise ProgramError(f"there is no reference {against!r}: {did_you_mean(against, get_args(Against))}")
    if steps < 1:
        raise ProgramError(f"steps={steps}: a proof takes 1 step or more")
    if isinstance(program.step, Rollout) and against != "one-device":
        raise ProgramError(
            f"a rollout in mode {program.mode} is laid out by its graph, which mode {against} knows nothing of\n"
            '  cure: against="one-device"'
        )
    if against == program.mode:
        raise ProgramError(
            f"the program runs in mode {against} itself, so there is nothing to compare\n"
            f'  cure: against="one-device", or a program in the other mode'
        )
    if not all(device.process_index == jax.process_index() for device in program.mesh.devices.flat):
        raise ProgramError(
            f"{program.plan.mesh} spans several processes, and a proof reads all numbers in one\n"
            "  cure: verify the same program on simulated devices: outlay.simulate(n)"
        )
