"""Run one step on the host's numbers: as it is, in its own dtypes, or replayed in float64 (`replay.py`)."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType, Mesh, NamedSharding

from outlay.analysis.verify.host import to_devices, to_host
from outlay.analysis.verify.reference.user_step import Places
from outlay.analysis.verify.replay import Override, Replay, draw_alike, wide
from outlay.analysis.verify.verification import Kind
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import quick_options
from outlay.core.jax_tracing import fresh_traces, intercept_operations
from outlay.program.program import Program

Leaves = dict[str, np.ndarray]
"""Arrays on the host by their paths; an array that stands at several paths is there under each."""

Run = Callable[[Leaves, Any], "Result"]
"""`run(state, batch)`: one step from the leaves of a state and a batch on the host."""


class FlatStep(Protocol):
    """A step as a function of a list of arrays.

    Attributes:
        places: once traced, where its results stand: the new state's, the outputs', the gradients'.
    """

    places: tuple[Places, Places, Places]

    def step(self, leaves: list[Any], batch: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the arrays of the new state, of the outputs, and the gradients."""
        ...


@dataclass(frozen=True)
class Result:
    """The results of one step, on the host.

    Attributes:
        state: the new state by path.
        outputs: the step's outputs by path, below `outputs`.
        grads: the gradients that the optimizer is given by path, below `grads`; empty if the step does not say which.
        differing: by path, in words, arrays that should be equal on several devices and are not.
        copies: what each device holds of these, if each should hold the whole.
    """

    state: Leaves
    outputs: Leaves
    grads: Leaves
    differing: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[np.ndarray]] = field(default_factory=dict)

    @functools.cached_property
    def leaves(self) -> dict[tuple[Kind, str], np.ndarray]:
        """Return every leaf by kind and path, in the order in which a step computes them."""
        kinds: dict[Kind, Leaves] = {"gradient": self.grads, "output": self.outputs, "state": self.state}
        return {(kind, path): leaf for kind, leaves in kinds.items() for path, leaf in leaves.items()}


_NAMES_DEVICES = ("context mesh", "incompatible devices")


@dataclass(frozen=True)
class Arguments:
    """What a variant takes.

    Attributes:
        paths: the paths of the state's arrays, in the order in which its step takes them.
        state: these arrays as shapes.
        batch: the batch as shapes.
        at: the shardings of both, or one for all.
        own: arrays that the state lacks, since the program has them for itself.
    """

    paths: Sequence[str]
    state: list[Any]
    batch: Any
    at: tuple[Any, Any]
    own: Leaves = field(default_factory=dict)


_RUNS_QUICKLY = 2**25
"""A step on a state of more bytes runs for longer than it is compiled."""


class Variant:
    """A step on a mesh, to run in its own dtypes or to replay in float64."""

    def __init__(
        self, program: Program, step: FlatStep, takes: Arguments, mesh: Mesh, instead_of: Mesh | None = None
    ) -> None:
        """Make a variant of a program's step.

        Args:
            program: whose step it is.
            step: the step.
            takes: what it takes.
            mesh: the mesh that it runs on.
            instead_of: if `mesh` is a single device, the mesh that the step was written for.
        """
        self._step, self._takes, self._mesh = step, takes, mesh
        self._in_mesh = program.steps_in_mesh
        self._instead_of = instead_of
        self._traces: dict[str, tuple[ClosedJaxpr, Any, Any]] = {}
        self._replays: dict[Any, tuple[Callable[..., Any], Replay]] = {}
        self._bits: Any = None
        self._has_gradients = True
        # Parts of a graph compute the same bits wherever they run, if they are compiled alike.
        is_quick = mesh.devices.flat[0].platform == "cpu" and not program.is_exact and not program.is_graph
        is_quick = is_quick and program.plan.bytes_total <= _RUNS_QUICKLY
        self._options = quick_options() if is_quick else None

    def traced(self) -> ClosedJaxpr:
        """Return the traced step."""
        return self._traced(self._shapes_with(None))[0]

    @property
    def places(self) -> tuple[Places, Places, Places]:
        """Where the results of the traced step stand: the new state's, the outputs', the gradients'."""
        state, outputs, grads = self._step.places
        return state, outputs, grads if self._has_gradients else []

    def run(self, state: Leaves, batch: Any) -> Result:
        """Run the step in its own dtypes."""
        try:
            with self._context():
                return self._result(self._compiled(*self._placed(state, batch, self._shapes_with(None))))
        except ValueError as error:
            # The step names devices itself; one device cannot follow that, but a replay can leave it out.
            if not self._instead_of or not any(words in str(error) for words in _NAMES_DEVICES):
                raise
            return self._replayed(state, batch, None, None, precise=False)

    def replay(self, state: Leaves, batch: Any, override: Override | None = None, given: Any = None) -> Result:
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

    def _stepped(self, leaves: list[Any], batch: Any) -> Any:
        state, outputs, grads = self._step.step(leaves, batch)
        return state, outputs, grads if self._has_gradients else []

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        """The step, compiled from the trace that is replayed as well; None if that is not how it would run."""
        shapes = self._shapes_with(None)
        _, _, traced = self._traced(shapes)
        with self._context():
            if traced is None:  # shardings that are part of types come with the arrays
                return jax.jit(lambda *args: self._stepped(*args), compiler_options=self._options)
            return traced.lower().compile(self._options)

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the program traces its step: without its mesh if the step names another."""
        return jax.set_mesh(self._mesh) if self._in_mesh else contextlib.nullcontext()

    def _shapes_with(self, batch: Any) -> tuple[Any, Any]:
        """Return the shapes with as many samples as a batch has; its keys are their bits."""
        state, planned = self._takes.state, self._takes.batch
        if batch is None:
            return state, planned
        sizes = [
            np.shape(leaf)[: shape.ndim] for leaf, shape in zip(*map(jax.tree.leaves, (batch, planned)), strict=True)
        ]
        shapes = [jax.ShapeDtypeStruct(size, x.dtype) for size, x in zip(sizes, jax.tree.leaves(planned), strict=True)]
        return state, jax.tree.unflatten(jax.tree.structure(planned), shapes)

    def _placed(self, state: Leaves, batch: Any, shapes: Any) -> tuple[Any, Any]:
        known, at = {**state, **self._takes.own}, self._takes.at
        leaves = [known[path] for path in self._takes.paths]
        return to_devices(leaves, shapes[0], at[0]), to_devices(batch, shapes[1], at[1])

    def _traced(self, shapes: Any) -> tuple[ClosedJaxpr, Any, Any]:
        """Return the trace, its results as shapes, and what can be compiled of it; None if it cannot."""
        key = str(shapes[1])
        if key not in self._traces:
            with fresh_traces():  # an inner jit may have been traced for another variant
                try:
                    self._traces[key] = self._trace(shapes)
                except jax.errors.UnexpectedTracerError:
                    if not self._has_gradients:
                        raise
                    self._has_gradients = False  # they stay in a jitted function inside of the step
                    self._traces[key] = self._trace(shapes)
        return self._traces[key]

    def _trace(self, shapes: Any) -> tuple[ClosedJaxpr, Any, Any]:
        is_explicit = any(of is AxisType.Explicit for of in self._mesh.axis_types)
        as_arrays = not (self._instead_of and is_explicit)
        types = jax.tree.map(_typed, tuple(shapes), self._sharding_trees(shapes)) if as_arrays else shapes
        if self._instead_of and not self._in_mesh:  # the mesh that the step names has devices that this variant lacks
            return self._traced_as_if(shapes)
        try:
            with self._context():
                traced = jax.jit(lambda *args: self._stepped(*args)).trace(*types)
        except ValueError as error:
            if not self._instead_of or _NAMES_DEVICES[0] not in str(error):
                raise
            return self._traced_as_if(shapes)
        except NameError as error:
            if "unbound axis name" not in str(error):
                raise
            raise ProgramError(
                f"the step uses a collective over a mesh axis ({error}), so it cannot run in mode auto\n"
                '  fix: outlay.verify(program, against="one-device")'
            ) from error
        return traced.jaxpr, traced.out_info, traced if as_arrays else None

    def _sharding_trees(self, shapes: Any) -> tuple[Any, Any]:
        return tuple(
            at if not isinstance(at, NamedSharding) else jax.tree.map(lambda _, at=at: at, tree)
            for at, tree in zip(self._takes.at, shapes, strict=True)
        )

    def _traced_as_if(self, types: Any) -> tuple[ClosedJaxpr, Any, Any]:
        """Trace a step whose `shard_map` names a mesh of several devices, as if it had named this one."""

        def instead(primitive: Any, bind: Callable[..., Any], args: Any, params: dict[str, Any]) -> Any:
            if primitive.name == "shard_map":
                names = params["mesh"].axis_names
                alone = self._mesh.devices.reshape((1,) * len(names))
                params = {**params, "mesh": Mesh(alone, names, axis_types=params["mesh"].axis_types)}
            return bind(*args, **params)

        jax.clear_caches()  # JAX has cached inner jitted functions as traced for all devices
        try:
            with intercept_operations(instead):
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
        return traced.jaxpr, traced.out_info, None

    def _replayed(self, state: Leaves, batch: Any, override: Override | None, given: Any, *, precise: bool) -> Result:
        shapes = self._shapes_with(batch)
        jaxpr, info, _ = self._traced(shapes)
        key = (id(jaxpr), override, precise)
        if key not in self._replays:
            replay = Replay(precise=precise, placed=not self._instead_of, override=override)

            def evaluate(given: Any, *leaves: Any) -> Any:
                replay.given = given
                return replay(jaxpr, *leaves)

            self._replays[key] = jax.jit(evaluate, compiler_options=self._options), replay
        with jax.enable_x64(precise or jax.config.values["jax_enable_x64"]), self._context():
            placed = self._placed(state, batch, _widely(shapes) if precise else shapes)
            results = to_host(self._replays[key][0](given, *jax.tree.leaves(placed)))
        return self._result(jax.tree.unflatten(jax.tree.structure(info), results))

    def _result(self, results: Any) -> Result:
        of_kinds = zip(self._step.places, to_host(results), strict=True)
        state, outputs, grads = ({path: x[number] for path, number in places} if x else {} for places, x in of_kinds)
        return Result(state, outputs, grads)


def without_sharding(shape: Any) -> Any:
    """Return a shape without its sharding, which on Explicit axes would be that of the program's own mesh."""
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype)


def _typed(shape: Any, at: Any) -> Any:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=at)


def _widely(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide(x.dtype)), shapes)
