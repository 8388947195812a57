"""`outlay.verify`: check whether a program computes what one device computes, array by array."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import jax
import numpy as np

from outlay.analysis.verify.batches import number_of_steps
from outlay.analysis.verify.proof import Against, Proof
from outlay.analysis.verify.stages import on_terminal
from outlay.analysis.verify.static.static_verification import StaticVerification
from outlay.analysis.verify.verification import Verification
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import is_compile_only
from outlay.core.public_names import called_as
from outlay.core.quantities import listed
from outlay.core.suggest import did_you_mean
from outlay.program.program import Program

if TYPE_CHECKING:
    from outlay.analysis.verify.sampled.sampled_verification import SampledVerification


@overload
def verify(
    program: Program,
    steps: int | None = None,
    against: Against = "one-device",
    *,
    batches: Any = None,
    key: Any = None,
    tolerance: float | None = None,
    static: Literal[False] = False,
    like: None = None,
    progress: Callable[[str], None] | None = None,
) -> Verification: ...


@overload
def verify(
    program: Program,
    steps: int | None = None,
    against: Against = "one-device",
    *,
    batches: Any = None,
    key: Any = None,
    tolerance: float | None = None,
    like: Program,
    progress: Callable[[str], None] | None = None,
) -> SampledVerification: ...


@overload
def verify(
    program: Program, *, static: Literal[True], progress: Callable[[str], None] | None = None
) -> StaticVerification: ...


@called_as(
    "outlay.verify(program)",
    num_steps="steps=",
    batch="batches=[batch] * 3",
    html="Path('page.html').write_text(outlay.verify(program).to_html())",
    atol="tolerance=",
    rtol="tolerance=",
)
def verify(
    program: Program,
    steps: int | None = None,
    against: Against = "one-device",
    *,
    batches: Any = None,
    key: Any = None,
    tolerance: float | None = None,
    static: bool = False,
    like: Program | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verification | StaticVerification | SampledVerification:
    """Run a program and a reference on the same numbers, and compare everything that they compute.

    The reference shares no code with the program: one device runs the step as it was written, under `jax.jit`, from the
    state that the init as it was written makes (Flax NNX modules as graphs and Equinox modules filtered, as their own
    jits take them). For a step from `outlay.train_step` it takes the loss and the optimizer: `jax.value_and_grad` of
    the mean over the whole batch, without microbatches, and the optimizer's update.

    It compares the outputs, the new state and, for steps from `outlay.train_step`, the gradients that the optimizer is
    given. Each side runs in its own dtypes, and is replayed in float64. In float64 both must agree in what the step
    changed, so that a fault shows at any learning rate and in any dtype. In its own dtypes the program must be as near
    to that as rounding allows, however badly the reference rounds. (If both are traced to the same operations, they
    mean the same, and float64 is used only where their own dtypes would hide a fault.) Arrays that should be equal on
    several devices must be so bit for bit. Both start each step from the reference's state, so that rounding does not
    add up. Further steps, with other batches and from another key, are compared in float64 alone, for what the first
    ones cannot show. For a graph loop in mode manual or placed no rounding is allowed: its parts compute the same bits
    wherever they run.

    The answer is `same`, `different` or `unknown`: unknown if a fault could hide, as behind NaN on both sides, or
    gradients that are all zero. If something differs, the usual mistakes are tried on one device, and those that the
    numbers confirm are named. The proof makes its own state, and leaves the program as it was.

    A program on compile-only devices is judged as compiled for them: the compiler's text is computed here, operation by
    operation, over as many simulated devices, in another process. What rounding may do there is measured, and
    operations without a known meaning are named and make the answer `unknown`.

    With `static=True` nothing is computed, so that a program of any size can be judged: each value of the compiled
    program is followed by how the devices along each mesh axis hold it, all the same, a part each, or a summand each,
    and the results must come out as the plan says. Sums that are missing, doubled or over the wrong axis, parts put
    together in another order, and copies that may differ are named with line and axis. The answer is `no fault found`
    or `different`; that the numbers are the same it cannot say.

    A program for absent hardware that is too big to compute here can be judged by a smaller one, `like=small`: the same
    step with fewer layers, features or samples, under the same layout on a mesh with the same axes. Both are compiled,
    and what the compiler made of them is compared: the exchanges, their axes and order, the calls of libraries, the
    loops and the operations. The smaller one is computed, and the exchanges of the big one are followed as with
    `static`. The answer is `same` if all three agree.

    Args:
        program: what to check.
        steps: how many steps; if None, as many as a list of batches has, else 3.
        against: `one-device` runs the step on one device of the mesh; `auto` and `manual` run it under the same layout
            in that mode.
        batches: one batch per step, as an iterable or as `batches[step]`, such as a recipe's data. Without them,
            batches of the planned shapes are made up: floats normal, or positive if that gives NaN; integers random,
            below the size of what they index; weights between 0.5 and 1.5.
        key: the PRNG key of the initial state; `jax.random.key(0)` if None.
        tolerance: by how much of its largest entry, or of its largest update, an array may differ, in float64 and in
            its own dtype. If None, 1e-6 in float64, and in its own dtype a share that follows the step's dtypes.
        static: follow the compiled program instead of computing it; no other argument but `progress` goes with it.
        like: a smaller program of the same structure, whose numbers are compared in its place; key and batches are of
            this one.
        progress: is called with each stage of the proof, in words; if None, a terminal shows them on stderr.

    Returns:
        The answer for every array; with `static`, what was followed and the faults; with `like`, both, and what of the
        two compiled programs agrees. Its `raise_if_different()` raises unless the answer is `same`, or `no fault
        found`.

    Raises:
        LayoutError: a batch does not have the planned shapes.
        ProgramError: the step cannot run in the reference's mode, there are too few batches, or an argument has the
            wrong type.

    Example:
        >>> def step(state, batch):
        ...     return state - batch.mean(), {"mean": batch.mean()}
        >>> program = outlay.program(
        ...     step, lambda key: jnp.ones(8), np.ones((16, 2), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> outlay.verify(program).verdict
        'same'
        >>> outlay.verify(program, static=True).verdict
        'no fault found'
    """
    if static:
        given = {"steps": steps, "batches": batches, "key": key, "tolerance": tolerance, "like": like}
        return _statically(program, [name for name, value in given.items() if value is not None], against, progress)
    steps = number_of_steps(batches) if steps is None else steps
    _check_arguments(program, steps, against, tolerance)
    # A mesh that the user has set is not that of the reference, which has one device.
    with on_terminal(progress) as stage, jax.set_mesh(None):
        if like is not None:
            _check_like(program, like, against)
            from outlay.analysis.verify.sampled.smaller_proof import verify_by_smaller

            return verify_by_smaller(program, like, operator.index(steps), tolerance, stage, key, batches)
        if _is_absent(program):
            # Imported here: what a program that is here does not need is not on its way.
            from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof

            return CompiledProof(program, operator.index(steps), tolerance, stage).of(key, batches)
        return Proof(program, operator.index(steps), against, tolerance, stage).of(key, batches)


def _statically(
    program: Program, given: list[str], against: str, progress: Callable[[str], None] | None
) -> StaticVerification:
    _check_arguments(program, 1, "one-device", None)
    given += [] if against == "one-device" else ["against"]
    if given:
        raise ProgramError(
            f"static=True computes nothing, so it takes no {listed(given)}\n  fix: outlay.verify(program, static=True)"
        )
    if program.is_graph:
        raise ProgramError(
            "a graph loop cannot be followed without computing it yet\n  fix: outlay.verify(program), without static"
        )
    # Imported here: what a proof by numbers does not need is not on its way.
    from outlay.analysis.verify.static.static_proof import verify_statically

    with on_terminal(progress) as stage:
        return verify_statically(program, stage)


def _check_arguments(program: Program, steps: Any, against: str, tolerance: Any) -> None:
    if not isinstance(program, Program):
        raise ProgramError(
            f"outlay.verify takes a program, not a {type(program).__name__}\n"
            "  fix: outlay.verify(outlay.program(step, init, batch, layout=layout, mesh=mesh))"
        )
    if against not in get_args(Against):
        raise ProgramError(f"there is no reference {against!r}: {did_you_mean(str(against), get_args(Against))}")
    # `True` is an integer, too.
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or operator.index(steps) < 1:
        given = f"steps is {type(steps).__name__}" if hasattr(steps, "shape") else f"steps={steps!r:.80}"
        raise ProgramError(
            f"{given}: a proof takes a whole number of steps, 1 or more\n"
            "  fix: steps=3; batches have a name of their own: outlay.verify(program, batches=[batch] * 3)"
        )
    is_share = isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and 0 <= tolerance < 1
    if tolerance is not None and not (is_share and math.isfinite(tolerance)):
        raise ProgramError(
            f"tolerance={tolerance!r}: it must be a share of an array's largest entry, from 0 up to 1\n"
            "  fix: tolerance=1e-3, or leave it out for one that follows the step's dtypes"
        )
    if program.is_graph and against != "one-device":
        raise ProgramError(
            f"a graph loop in mode {program.mode} is laid out by its graph, which does not exist in mode {against}\n"
            '  fix: against="one-device"'
        )
    if against == program.mode:
        raise ProgramError(
            f"the program itself runs in mode {against}, so there is nothing to compare\n"
            f'  fix: against="one-device", or a program in the other mode'
        )
    if _is_absent(program):
        _check_absent(program, against)
    elif not all(device.process_index == jax.process_index() for device in program.mesh.devices.flat):
        raise ProgramError(
            f"{program.plan.mesh} spans several processes, and a proof reads all numbers in one\n"
            "  fix: verify the same program on simulated devices: outlay.simulate(n)"
        )


def _check_like(program: Program, like: Any, against: str) -> None:
    _check_arguments(like, 1, against, None)
    here = [one for one in (program, like) if not _is_absent(one)]
    if here:
        raise ProgramError(
            f"{here[0].plan.mesh} is here: a smaller program is compared with one that is compiled for absent "
            "hardware\n  fix: outlay.verify(program), or a mesh of a target: outlay.mesh(data=8, target='h100:1x8')"
        )


def _is_absent(program: Program) -> bool:
    """Return whether a program is compiled for hardware that is not here."""
    return is_compile_only(program.mesh.devices.flat[0])


def _check_absent(program: Program, against: str) -> None:
    if against != "one-device":
        raise ProgramError(
            f"{program.plan.mesh} is not here: its program is compared with one device of this machine, not with mode "
            f'{against}\n  fix: against="one-device", or simulated devices: outlay.simulate({program.mesh.size})'
        )
    if program.is_graph:
        raise ProgramError(
            f"a graph loop cannot be computed as compiled for {program.plan.mesh} yet\n"
            f"  fix: verify it on simulated devices: outlay.simulate({program.mesh.size})"
        )
