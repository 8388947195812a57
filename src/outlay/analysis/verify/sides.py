"""The sides that a proof compares: a program as planned or in another mode, and the step as its user wrote it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.analysis.verify.host import by_path, copies_of, differing_copies, to_devices, to_host
from outlay.analysis.verify.reference.plain_loop import PlainLoop
from outlay.analysis.verify.reference.user_step import Places, UserStep
from outlay.analysis.verify.runs import Arguments, Leaves, Result, Run, Variant, without_sharding
from outlay.arrays.shardings import shardings
from outlay.core.as_written import current_observer
from outlay.core.constrain import KeepsHistory
from outlay.core.context_values import within
from outlay.core.jax_compat import quick_options
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import flatten_paths, under
from outlay.program.modes import Mode
from outlay.program.program import Program


class ProgramStep:
    """The step of a program as a mode runs it, with the gradients that its optimizer is given."""

    def __init__(self, program: Program, mode: Mode, *, as_compiled: bool) -> None:
        self._step = program.step_in(mode)
        self._structure, self._own = jax.tree.structure(program.state_shapes), own_leaves(program)
        self._run = program.per_shard(self._with_gradients) if as_compiled else self._with_gradients
        self.places: tuple[Places, Places, Places] = ([], [], [])

    def step(self, leaves: list[Any], batch: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the arrays of the new state, of the outputs, and the gradients."""
        state, outputs, grads = self._run(jax.tree.unflatten(self._structure, leaves), batch)
        of_state = [(path, number) for path, number in _numbered(state) if path not in self._own]
        self.places = (of_state, _numbered(outputs, "outputs"), _numbered(grads))
        return jax.tree.leaves(state), jax.tree.leaves(outputs), jax.tree.leaves(grads)

    def _with_gradients(self, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        taken: list[Any] = []
        with within(current_observer, taken.append):
            state, outputs = self._step(state, batch)
        return state, outputs, {"grads": taken[0] if len(taken) == 1 else taken} if taken else {}


def as_planned(program: Program) -> tuple[Run, Variant]:
    """Return what a call of the program runs, and the same to replay."""
    return _Call(program), in_mode_of(program, program.mode, as_compiled=True)


def own_leaves(program: Program) -> Leaves:
    """Return zeros for the leaves that the layout has added to the state, so that one device has none of them.

    They are scales that products in FP8 had in earlier steps. They change how a product rounds, and not what it means.
    """
    if not program.layout.keeps_scales:
        return {}
    nodes = flatten_paths(program.state_shapes, is_leaf=lambda node: isinstance(node, KeepsHistory))[0]
    added = {under(path, "scaling"): node.scaling for path, node in nodes if isinstance(node, KeepsHistory)}
    return {path: np.zeros(leaf.shape, leaf.dtype) for path, leaf in added.items() if leaf is not None}


class _Call:
    """Calls a program on the host's numbers. What no step changes, such as the paths of its results, is kept.

    Leaves of the program's own go from call to call. The first is called twice, since a training begins without scales.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._outputs, self._state = _Naming("outputs"), _Naming("")
        self._own, self._is_begun = own_leaves(program), False

    @functools.cached_property
    def _at(self) -> tuple[Any, Any]:
        return _shardings_of(self._program)

    @functools.cached_property
    def _paths(self) -> list[str]:
        return list(by_path(self._program.state_shapes))

    def __call__(self, state: Leaves, batch: Any) -> Result:
        if self._own and not self._is_begun:
            self._is_begun = True
            self(state, batch)
        program, (state_at, batch_at) = self._program, self._at
        known = {**state, **self._own}
        given = jax.tree.unflatten(jax.tree.structure(program.state_shapes), [known[path] for path in self._paths])
        # A placed program sends its inputs to where they are read, each to its own devices, when it is called.
        placed = batch if program.sends_batch else to_devices(batch, program.batch_shapes, batch_at)
        result = program(to_devices(program.pad(given), program.state_shapes, state_at), placed)
        new_state, outputs = result if program.donate else (None, result)
        everything = {**self._outputs(outputs), **self._state(new_state)}
        differing = {path: words for path, leaf in everything.items() if (words := differing_copies(leaf))}
        held = {path: copies_of(everything[path], program.mesh) for path in differing}
        copies = {path: one for path, one in held.items() if one is not None}
        after = self._state(program.crop(to_host(new_state)))
        self._own = {path: after.pop(path, leaf) for path, leaf in self._own.items()}
        return Result(after, self._outputs(to_host(outputs)), {}, differing, copies)


class _Naming:
    """Names the leaves of trees of one structure, as `by_path` does; the paths are computed once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: tuple[Any, list[str]] | None = None

    def __call__(self, tree: Any) -> dict[str, Any]:
        leaves, structure = jax.tree.flatten(tree)
        if self._known is None or self._known[0] != structure:
            self._known = structure, list(by_path(tree, self._root))
        return dict(zip(self._known[1], leaves, strict=True))


def in_mode_of(program: Program, mode: Mode, *, as_compiled: bool = False) -> Variant:
    """Return the program's step under its layout in a mode.

    Args:
        program: the program.
        mode: the mode.
        as_compiled: whether that is how the program is compiled, so that what XLA does not split runs on shards.

    Raises:
        ProgramError: the step cannot run in that mode.
    """
    shapes = jax.tree.map(without_sharding, (program.state_shapes, program.batch_shapes))
    state_at, batch_at = _shardings_of(program)
    paths = list(by_path(program.state_shapes))
    at = (jax.tree.leaves(state_at), batch_at)
    takes = Arguments(paths, jax.tree.leaves(shapes[0]), shapes[1], at, own_leaves(program))
    return Variant(program, ProgramStep(program, mode, as_compiled=as_compiled), takes, program.mesh)


class OneDevice:
    """The reference: the step and the init that the user wrote, under `jax.jit` on one device.

    The mesh keeps the names of its axes, each of size 1, for steps that name them: in collectives, in mode manual, or
    in constraints of their own.

    Args:
        program: the program whose `written` step and init they are.
        loop: what a loss and an optimizer mean, where the step is from `outlay.train_step`.
        device: the device; the first of the mesh if None.

    Attributes:
        step: the step.
        variant: the step to run and to replay; known once `start` was called.
        traced_init: the trace of init; likewise.
    """

    variant: Variant

    def __init__(self, program: Program, loop: PlainLoop | None = None, *, device: jax.Device | None = None) -> None:
        self._program, mesh = program, program.mesh
        only: Any = np.array([device or mesh.devices.flat[0]], dtype=object).reshape((1,) * mesh.devices.ndim)
        self._mesh = Mesh(only, mesh.axis_names, axis_types=mesh.axis_types)
        self.step = UserStep(program.written, loop or PlainLoop(), only_reads=not program.donate)
        self._init: Any = None
        self.traced_init: Any = None

    def start(self, key: Any) -> Leaves:
        """Return the state before the first step, as the user's init makes it on this device."""
        whole = NamedSharding(self._mesh, PartitionSpec())
        if self._init is None:
            is_quick = self._mesh.devices.flat[0].platform == "cpu" and not self._program.is_graph
            options = quick_options() if is_quick else None
            with fresh_traces():
                traced = self._traced_init(jax.device_put(key, whole))
            shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in traced.out_info]
            self.traced_init, self._init = traced.jaxpr, traced.lower().compile(options)
            first: dict[int, str] = {}
            for path, number in self.step.state.places:
                first.setdefault(number, path)
            step: Any = _PerShard(self.step, self._mesh) if self._program.runs_per_shard else self.step
            batch = jax.tree.map(without_sharding, self._program.batch_shapes)
            takes = Arguments([first[number] for number in range(len(shapes))], shapes, batch, (whole, whole))
            self.variant = Variant(self._program, step, takes, self._mesh, instead_of=self._program.mesh)
        made = to_host(self._init(jax.device_put(key, whole)))
        return {path: made[number] for path, number in self.step.state.places}

    def _traced_init(self, key: Any) -> Any:
        # Without a mesh first, as one device has none; some models name its axes.
        try:
            return jax.jit(lambda key: self.step.init(key)).trace(key)
        except ValueError:
            with jax.set_mesh(self._mesh):
                return jax.jit(lambda key: self.step.init(key)).trace(key)


class _PerShard:
    """A step for each device's pieces, on one device: its pieces are whole, and its collectives do nothing."""

    def __init__(self, step: UserStep, mesh: Mesh) -> None:
        self._step, self._mesh = step, mesh

    @property
    def places(self) -> tuple[Places, Places, Places]:
        """Where the results of the step stand."""
        return self._step.places

    def step(self, leaves: list[Any], batch: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the arrays of the new state, of the outputs, and the gradients."""
        whole = PartitionSpec()
        on_pieces = jax.shard_map(self._step.step, mesh=self._mesh, in_specs=whole, out_specs=whole, check_vma=False)
        return on_pieces(leaves, batch)


def as_tree(program: Program, state: Mapping[str, Any]) -> Any:
    """Return leaves by path as the state that a program takes."""
    paths = by_path(program.state_shapes)
    return jax.tree.unflatten(jax.tree.structure(program.state_shapes), [state[path] for path in paths])


def _numbered(tree: Any, root: str = "") -> Places:
    return [(path, number) for number, path in enumerate(by_path(tree, root))]


def _shardings_of(program: Program) -> tuple[Any, Any]:
    state = shardings(program.plan, program.state_shapes, program.mesh)
    return state, shardings(program.plan, program.batch_shapes, program.mesh, root="batch")
