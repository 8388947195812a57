"""Run one step on the host's numbers in the variants to compare: as planned, in another mode, on one device.

Each variant runs the step as it is, in its own dtypes, and replays it in float64 (`replay.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.analysis.verify.host import by_path, copies_of, differing_copies, to_devices, to_host
from outlay.analysis.verify.replay import Override, Replay, draw_alike, wide
from outlay.analysis.verify.verification import Kind
from outlay.arrays.shardings import shardings
from outlay.core.constrain import Gradient, Runner, Sums, summing
from outlay.core.error_types import ProgramError
from outlay.core.jax_tracing import intercepting
from outlay.program.execution import Mode
from outlay.program.modes import in_mode
from outlay.program.program import Program

Stepped = Callable[[Any, Any], tuple[Any, Any, Any]]
"""A step and its gradients, `stepped(state, batch) -> (new_state, outputs, gradients)`."""

Run = Callable[[Any, Any], "Result"]
"""`run(state, batch)`: one step from a state and a batch on the host."""


@dataclass(frozen=True)
class Result:
    """The results of one step, on the host.

    Attributes:
        state: the new state.
        outputs: the step's outputs.
        grads: gradients of the sums over the batch by path; empty if the step does not say where it sums.
        differing: by path, in words, arrays that should be equal on several devices and are not.
        copies: what each device holds of these, if each should hold the whole.
    """

    state: Any
    outputs: Any
    grads: dict[str, np.ndarray]
    differing: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[np.ndarray]] = field(default_factory=dict)

    @functools.cached_property
    def leaves(self) -> dict[tuple[Kind, str], np.ndarray]:
        """Return every leaf by kind and path, in the order in which a step computes them."""
        kinds: dict[Kind, dict[str, np.ndarray]] = {
            "gradient": self.grads,
            "output": by_path(self.outputs, "outputs"),
            "state": by_path(self.state),
        }
        return {(kind, path): leaf for kind, leaves in kinds.items() for path, leaf in leaves.items()}


_NAMES_DEVICES = ("context mesh", "incompatible devices")


class Variant:
    """A step on a mesh, to run in its own dtypes or to replay in float64."""

    def __init__(self, program: Program, stepped: Stepped, mesh: Mesh, at: Any, instead_of: Mesh | None = None) -> None:
        """Make a variant of a program's step.

        Args:
            program: whose step it is.
            stepped: the step and its gradients.
            mesh: the mesh that it runs on.
            at: the shardings of state and batch.
            instead_of: if `mesh` is a single device, the mesh that the step was written for.
        """
        self._stepped, self._mesh, self._at, self._shapes = stepped, mesh, at, _shapes(program)
        self._in_mesh = program.steps_in_mesh
        self._instead_of = instead_of
        self._traces: dict[str, tuple[ClosedJaxpr, Any]] = {}
        self._replays: dict[Any, tuple[Callable[..., Any], Replay]] = {}
        self._bits: Any = None

    def traced(self, batch: Any = None) -> tuple[ClosedJaxpr, Any]:
        """Return the traced step, and its results as shapes.

        Args:
            batch: a batch on the host, if it has another number of samples than planned.
        """
        shapes = self._shapes_with(batch)
        key = str(shapes[1])
        if key not in self._traces:
            self._traces[key] = self._trace(shapes)
        return self._traces[key]

    def run(self, state: Any, batch: Any) -> Result:
        """Run the step in its own dtypes."""
        try:
            with self._context():
                return _result(self._jitted(*self._placed(state, batch, self._shapes)))
        except ValueError as error:
            # The step names devices itself; one device cannot follow that, but a replay can leave it out.
            if not self._instead_of or not any(words in str(error) for words in _NAMES_DEVICES):
                raise
            return self._replayed(state, batch, None, None, precise=False)

    def replay(self, state: Any, batch: Any, override: Override | None = None, given: Any = None) -> Result:
        """Run the step in float64, optionally with some operations replaced, which receive `given`."""
        if override is None and self._bits is not None:
            override, given = draw_alike, self._bits
        return self._replayed(state, batch, override, given, precise=True)

    def drawing(self, bits: Any) -> Variant:
        """Return the same variant with all random numbers drawn from these bits."""
        other = copy.copy(self)
        other._bits = bits
        return other

    @property
    def rounded(self) -> set[str]:
        """The operations that replays could not evaluate in float64."""
        return set().union(*(replay.rounded for _, replay in self._replays.values()))

    @functools.cached_property
    def _jitted(self) -> Callable[..., Any]:
        return jax.jit(lambda *args: self._stepped(*args))

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the program traces its step: without its mesh if the step names another."""
        return jax.set_mesh(self._mesh) if self._in_mesh else contextlib.nullcontext()

    def _shapes_with(self, batch: Any) -> tuple[Any, Any]:
        """Return the shapes with as many samples as a batch has; its keys are their bits."""
        state, planned = self._shapes
        if batch is None:
            return state, planned
        sizes = [
            np.shape(leaf)[: shape.ndim] for leaf, shape in zip(*map(jax.tree.leaves, (batch, planned)), strict=True)
        ]
        shapes = [jax.ShapeDtypeStruct(size, x.dtype) for size, x in zip(sizes, jax.tree.leaves(planned), strict=True)]
        return state, jax.tree.unflatten(jax.tree.structure(planned), shapes)

    def _placed(self, state: Any, batch: Any, shapes: Any) -> tuple[Any, Any]:
        return to_devices(state, shapes[0], self._at[0]), to_devices(batch, shapes[1], self._at[1])

    def _trace(self, shapes: Any) -> tuple[ClosedJaxpr, Any]:
        types = shapes
        if not self._instead_of:  # on Explicit axes the types hold shardings
            types = jax.tree.map(
                lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tuple(shapes), tuple(self._at)
            )
        if self._instead_of and not self._in_mesh:  # the mesh that the step names has devices that this variant lacks
            return self._traced_as_if(types)
        try:
            with self._context():
                traced = self._jitted.trace(*types)
        except ValueError as error:
            if not self._instead_of or _NAMES_DEVICES[0] not in str(error):
                raise
            return self._traced_as_if(types)
        except NameError as error:
            if "unbound axis name" not in str(error):
                raise
            raise ProgramError(
                f"the step uses a collective over a mesh axis ({error}), so it cannot run in mode auto\n"
                '  fix: outlay.verify(program, against="one-device")'
            ) from error
        return traced.jaxpr, traced.out_info

    def _traced_as_if(self, types: Any) -> tuple[ClosedJaxpr, Any]:
        """Trace a step whose `shard_map` names a mesh of several devices, as if it had named this one."""

        def instead(primitive: Any, bind: Callable[..., Any], args: Any, params: dict[str, Any]) -> Any:
            if primitive.name == "shard_map":
                names = params["mesh"].axis_names
                alone = self._mesh.devices.reshape((1,) * len(names))
                params = {**params, "mesh": Mesh(alone, names, axis_types=params["mesh"].axis_types)}
            return bind(*args, **params)

        jax.clear_caches()  # JAX has cached inner jitted functions as traced for all devices
        try:
            with intercepting(instead):
                traced = jax.jit(lambda *args: self._stepped(*args)).trace(*types)
        except (TypeError, ValueError) as error:
            raise ProgramError(
                "the step cannot be taken on one device, which would be the reference: its own shard_map is written for"
                f" its number of devices, and fails on one ({str(error).splitlines()[0]})"
                "\n  fix: take sizes from the arrays that its function is given and from jax.lax.axis_size(axis), so"
                " that it computes the same on any number of devices"
            ) from error
        finally:
            jax.clear_caches()
        return traced.jaxpr, traced.out_info

    def _replayed(self, state: Any, batch: Any, override: Override | None, given: Any, *, precise: bool) -> Result:
        jaxpr, info = self.traced(batch)
        shapes = self._shapes_with(batch)
        key = (id(jaxpr), override, precise)
        if key not in self._replays:
            replay = Replay(precise=precise, placed=not self._instead_of, override=override)

            def evaluate(given: Any, *leaves: Any) -> Any:
                replay.given = given
                return replay(jaxpr, *leaves)

            self._replays[key] = jax.jit(evaluate), replay
        with jax.enable_x64(precise or jax.config.values["jax_enable_x64"]), self._context():
            placed = self._placed(state, batch, _widely(shapes) if precise else shapes)
            results = to_host(self._replays[key][0](given, *jax.tree.leaves(placed)))
        return _result(jax.tree.unflatten(jax.tree.structure(info), results))


def as_planned(program: Program) -> tuple[Run, Variant]:
    """Return what a call of the program runs, and the same to replay."""
    stepped = program.per_shard(_in_mode(program, program.mode))
    variant = Variant(program, stepped, program.mesh, _shardings_of(program))
    gradients = jax.jit(lambda state, batch: variant._stepped(state, batch)[2]) if program.sums_over_batch else None

    def run(state: Any, batch: Any) -> Result:
        state_at, batch_at = _shardings_of(program)

        def place(tree: Any) -> Any:
            return to_devices(tree, program.state_shapes, state_at)

        state = program.pad(state)
        # A placed program sends its inputs to where they are read, each to its own devices, when it is called.
        placed_batch = batch if program.sends_batch else to_devices(batch, program.batch_shapes, batch_at)
        grads: Any = {}
        if gradients:
            with program.context():
                grads = gradients(place(state), placed_batch)
        result = program(place(state), placed_batch)
        new_state, outputs = result if program.donate else (None, result)
        everything = {**by_path(grads), **by_path(outputs, "outputs"), **by_path(new_state)}
        differing = {path: words for path, leaf in everything.items() if (words := differing_copies(leaf))}
        held = {path: copies_of(everything[path], program.mesh) for path in differing}
        copies = {path: one for path, one in held.items() if one is not None}
        return Result(program.crop(to_host(new_state)), to_host(outputs), by_path(to_host(grads)), differing, copies)

    return run, variant


def other_mode(program: Program, mode: Mode) -> Variant:
    """Return the program's step under its layout in another mode.

    Raises:
        ProgramError: the step cannot run in that mode.
    """
    return Variant(program, _in_mode(program, mode), program.mesh, _shardings_of(program))


def one_device(program: Program) -> Variant:
    """Return the program's step on one device.

    The mesh keeps the names of its axes, each of size 1, for steps that name them: in collectives, in mode manual, or
    in constraints of their own.
    """
    mesh = program.mesh
    device = np.array(mesh.devices.flat[0], dtype=object).reshape((1,) * mesh.devices.ndim)
    alone = Mesh(device, mesh.axis_names, axis_types=mesh.axis_types)
    step = program.step
    if program.runs_per_shard:
        step = in_mode("manual", step, program.plan, alone, sums_over_batch=False)
    whole = NamedSharding(alone, PartitionSpec())
    return Variant(program, _with_gradients(step, _directly), alone, (whole, whole), instead_of=mesh)


def _in_mode(program: Program, mode: Mode) -> Stepped:
    step, runner = program.step_in(mode)
    return _with_gradients(step, runner or _directly)


def _shapes(program: Program) -> tuple[Any, Any]:
    """Return the shapes without shardings, which on Explicit axes would be those of the program's own mesh."""
    shapes = (program.state_shapes, program.batch_shapes)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)


def _shardings_of(program: Program) -> tuple[Any, Any]:
    state = shardings(program.plan, program.state_shapes, program.mesh)
    return state, shardings(program.plan, program.batch_shapes, program.mesh, root="batch")


def _with_gradients(step: Callable[[Any, Any], Any], take: Runner) -> Stepped:
    """Return a step that also returns the gradients that it takes, if it says that it takes some."""

    def stepped(state: Any, batch: Any) -> Any:
        taken = []

        def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
            taken.append(take(gradient, sums, params, samples))
            return taken[-1]

        with summing(run):
            new_state, outputs = step(state, batch)
        grads = [grads for grads, *_ in taken]
        return new_state, outputs, {"grads": grads[0] if len(grads) == 1 else grads} if grads else {}

    return stepped


def _directly(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
    return gradient(sums, params, samples)


def _result(results: tuple[Any, Any, Any]) -> Result:
    new_state, outputs, grads = to_host(results)
    return Result(new_state, outputs, by_path(grads))


def _widely(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide(x.dtype)), shapes)
