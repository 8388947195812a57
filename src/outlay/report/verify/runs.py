"""One step on the host's numbers, run in the ways that are compared: laid out, in the other mode, on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.core.batch_sum import Gradient, Runner, Sums, summing
from outlay.core.errors import ProgramError
from outlay.execute.abstract import abstract_step
from outlay.execute.by_hand import by_hand
from outlay.execute.intermediates import placing
from outlay.execute.modes import Mode, Step, check_mode, in_mode
from outlay.execute.program import Program
from outlay.execute.rollout import Rollout
from outlay.place.shardings import shardings
from outlay.report.verify.facts import Kind
from outlay.report.verify.host import by_path, to_devices, to_host
from outlay.report.verify.replicas import differing_copies


@dataclass(frozen=True)
class Result:
    """What one step gave, on the host.

    Attributes:
        state: the new state.
        outputs: the step's outputs.
        grads: gradients of the sums over the batch by path; empty where the step does not say where it sums.
        differing: what is declared the same on several devices and is not, in words, by path.
    """

    state: Any
    outputs: Any
    grads: dict[str, np.ndarray]
    differing: dict[str, str] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[tuple[Kind, str], np.ndarray]:
        """Every leaf by kind and path, in the order in which a step makes them."""
        outputs = by_path(self.outputs, "outputs")
        kinds: dict[Kind, dict[str, np.ndarray]] = {
            "gradient": self.grads,
            "output": outputs,
            "state": by_path(self.state),
        }
        return {(kind, path): leaf for kind, leaves in kinds.items() for path, leaf in leaves.items()}


Run = Callable[[Any, Any], Result]
"""`run(state, batch)`: one step from a state and a batch on the host."""


def laid_out(program: Program) -> Run:
    """The program as it is: what a call of it runs."""
    gradients = _gradients(program, program.mode)
    state_at, batch_at = _places(program)

    def run(state: Any, batch: Any) -> Result:
        def place(tree: Any) -> Any:
            return to_devices(tree, program.state_shapes, state_at)

        state = program.pad(state)
        # Inputs of a placed program go to where they are read, each to its own devices, when it is called.
        placed_batch = batch if program.mode == "placed" else to_devices(batch, program.batch_shapes, batch_at)
        with jax.set_mesh(program.mesh):
            grads = gradients(place(state), placed_batch)
        new_state, outputs = program(place(state), placed_batch)
        everything = {**by_path(grads), **by_path(outputs, "outputs"), **by_path(new_state)}
        differing = {path: words for path, leaf in everything.items() if (words := differing_copies(leaf))}
        return Result(program.crop(to_host(new_state)), to_host(outputs), by_path(to_host(grads)), differing)

    return run


def other_mode(program: Program, mode: Mode) -> Run:
    """The program's step under its layout, in another mode.

    Raises:
        ProgramError: the step cannot run in that mode.
    """
    check_mode(mode, program.mesh)
    step = in_mode(mode, program.step, program.plan, program.mesh, sums_over_batch=_sums_over_batch(program))
    return _compiled(program, step, _gradients(program, mode), program.mesh, _places(program))


def one_device(program: Program) -> Run:
    """The program's step on one device.

    The mesh keeps the names of its axes, of size 1 each, for steps that name them: in collectives, when the mode is
    manual, or in constraints of their own.
    """
    mesh = program.mesh
    device = np.array(mesh.devices.flat[0], dtype=object).reshape((1,) * mesh.devices.ndim)
    alone = Mesh(device, mesh.axis_names, axis_types=mesh.axis_types)
    step = program.step
    if program.mode == "manual" and not program.rows and not _sums_over_batch(program):
        step = in_mode("manual", step, program.plan, alone, sums_over_batch=False)
    gradients = _gradients_of(step, take=_directly) if _sums_over_batch(program) else _no_gradients
    whole = NamedSharding(alone, PartitionSpec())
    return _compiled(program, step, gradients, alone, (whole, whole))


def _compiled(program: Program, step: Step, gradients: Any, mesh: Mesh, places: tuple[Any, Any]) -> Run:
    compiled = jax.jit(lambda state, batch: (*step(state, batch), gradients(state, batch)))

    def run(state: Any, batch: Any) -> Result:
        placed = to_devices(state, program.state_shapes, places[0]), to_devices(batch, program.batch_shapes, places[1])
        try:
            with jax.set_mesh(mesh):
                new_state, outputs, grads = to_host(compiled(*placed))
        except NameError as error:
            if "unbound axis name" not in str(error):
                raise
            raise ProgramError(
                f"the step uses a collective over a mesh axis ({error}), so it cannot run in mode auto\n"
                '  cure: outlay.verify(program, against="one-device")'
            ) from error
        return Result(new_state, outputs, by_path(grads))

    return run


def _places(program: Program) -> tuple[Any, Any]:
    state = shardings(program.plan, program.state_shapes, program.mesh)
    return state, shardings(program.plan, program.batch_shapes, program.mesh, root="batch")


def _sums_over_batch(program: Program) -> bool:
    if isinstance(program.step, Rollout):
        return False
    with jax.set_mesh(program.mesh):
        return abstract_step(program.step, program.state_shapes, program.batch_shapes, by_hand=True).sums_over_batch


def _gradients(program: Program, mode: str) -> Any:
    """A function from state and batch to the gradients as a mode takes them under the layout."""
    if not _sums_over_batch(program):
        return _no_gradients
    take = by_hand(program.plan, program.mesh) if mode == "manual" else _directly
    return jax.jit(_gradients_of(placing(program.step, program.plan, program.mesh), take))


def _gradients_of(step: Step, take: Runner) -> Any:
    def gradients(state: Any, batch: Any) -> Any:
        taken = []

        def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any]:
            taken.append(take(gradient, sums, params, samples))
            return taken[-1]

        with summing(run):
            step(state, batch)  # what it does with them is dead code here, and the compiler drops it
        grads = [grads for grads, _ in taken]
        return {"grads": grads[0] if len(grads) == 1 else grads}

    return gradients


def _directly(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any]:
    return gradient(sums, params, samples)


def _no_gradients(state: Any, batch: Any) -> Any:
    return {}
