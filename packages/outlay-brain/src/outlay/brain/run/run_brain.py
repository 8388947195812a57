"""`outlay.brain.run_brain`: run a Brain from Python."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from outlay import Layout, Program
from outlay import mesh as make_mesh
from outlay.arrays import gather, put
from outlay.brain.brain import Brain
from outlay.brain.files.nir_read import NirBrain, read_nir
from outlay.brain.files.read_brain import read_brain
from outlay.brain.module import BrainError
from outlay.brain.run.brain_programs import programs_of
from outlay.brain.run.brain_recipe import CHUNK, BrainRecipe, check_count
from outlay.brain.run.brain_run import BrainRun
from outlay.brain.run.closed_loop import ClosedLoop
from outlay.brain.run.layouts import COPIES, MESHES
from outlay.brain.run.simulate import check_simulation, simulate
from outlay.errors import Problem
from outlay.kit import (
    MemoryRecorder,
    ZarrRecorder,
    attached_devices,
    counted,
    flatten_paths,
    prepare,
    shardings,
    type_differences,
)


def run_brain(
    brain: Brain | NirBrain | str | Path,
    *,
    steps: int,
    inputs: Mapping[str, Any] | ClosedLoop | None = None,
    record: str | Sequence[str] = (),
    stride: int = 1,
    windows: str | Sequence[tuple[float, float] | str] = (),
    triggers: str | Sequence[str] = (),
    to: str | Path | None = None,
    state: Any = None,
    seed: int = 0,
    layout: str | Layout | None = None,
    mesh: Mesh | None = None,
    mode: str | None = None,
    chunk: int = CHUNK,
    kernel: str = "jax",
    progress: bool = False,
) -> BrainRun:
    """Run a Brain: many steps in one compiled loop, on one device unless a layout is given.

    The program is compiled in the first call for a Brain. Later calls with the same Brain object run it again, whatever
    the seed, the inputs, the state and the number of steps, if what is recorded, the layout and the chunk are the same.

    Args:
        brain: the Brain, or its file: Outlay's TOML, Spark's `.scfg`, or a `.nir`.
        steps: the number of steps of dt.
        inputs: for each input of the Brain, an array with one entry per step, a number or an array for all steps, or a
            function of the step, counted from 0; or a `ClosedLoop`. Inputs that are not given get slow waves.
        record: address patterns, such as `*_ex:out_spikes`, `**.soma.potential` or
            `B_in.synapses.kernel`. Recording does not change the result.
        stride: the number of steps between two recorded steps.
        windows: record only in these time windows, as (from, to) in ms or as text, `"100..200"`.
        triggers: record only around events, such as `"A_ex:out_spikes > 80 +- 50"`: 50 ms before and after the
            population's mean rate over 10 ms is above 80 Hz.
        to: a folder to which the recording is written as Zarr during the run; None to record in memory.
        state: the initial state, such as `run.state` of an earlier run, from any layout and any number
            of devices; it may be donated.
        seed: the seed of the random initial state.
        layout: `copies`, `by-neuron`, `by-module`, or a `Layout`.
        mesh: the mesh; by default all devices if a layout is given, and otherwise the first device.
        mode: the mode; None for that of the layout.
        chunk: the steps in one call of the program.
        kernel: what computes the pairs: `jax`; or the same equations in one pass: `fast-cpu`, machine code for this
            processor, about twice as fast, which needs `outlay[fast-cpu]`. A population that it cannot compute runs in
            plain JAX, and a warning says why.
        progress: show time, speed and rates on stderr.

    Raises:
        BrainError: an argument has the wrong type; inputs or state do not fit, an address matches nothing; or the run
            stopped because inputs or state were not finite: then `error.recording` has the recording so far.

    Example:
        >>> from outlay.brain import Brain
        >>> from outlay.brain import Connection
        >>> from outlay.brain import LinearSpiker
        >>> brain = Brain({"eye": LinearSpiker()}, [Connection("inputs:light", "eye:signal")], inputs={"light": (3,)})
        >>> run = outlay.brain.run_brain(brain, steps=100, inputs={"light": [0.0, 0.5, 1.0]}, record=["*:spikes"])
        >>> run["eye:spikes"].shape, run.times[-1].item()
        ((100, 3), 99.0)
    """
    check_count("steps", steps)
    _check_kinds(
        ("brain", brain, Brain | NirBrain | str | os.PathLike, "a Brain or a file"),
        ("inputs", inputs, Mapping | ClosedLoop | None, 'a dict by name, such as {"drive": 1.0}'),
        ("seed", seed, int, "a whole number"),
        ("layout", layout, str | Layout | None, '"copies", "by-neuron", "by-module", or an outlay.Layout'),
        ("mesh", mesh, Mesh | None, "a mesh, such as outlay.mesh(devices=2)"),
        ("mode", mode, str | None, '"auto", "manual" or "placed"'),
        *((name, value, Sequence, "a list") for name, value in {"record": record, "windows": windows}.items()),
        ("triggers", triggers, Sequence, "a list"),
    )
    record = [record] if isinstance(record, str) else record
    windows = [windows] if isinstance(windows, str) else windows
    triggers = [triggers] if isinstance(triggers, str) else triggers
    _check_kinds(
        *(("record", one, str, 'addresses, such as "*:out_spikes"') for one in record),
        *(("triggers", one, str, 'texts, such as "A_ex:out_spikes > 80 +- 50"') for one in triggers),
    )
    model = _brain(brain)
    asked_for = layout, mesh, mode
    recipe = BrainRecipe.of(
        model,
        inputs=inputs,
        steps=steps,
        record=record,
        stride=stride,
        windows=windows,
        triggers=triggers,
        seed=seed,
        chunk=chunk,
        kernel=kernel,
    )
    if isinstance(layout, Layout):
        recipe, layout = recipe.with_layout(layout), None
    elif layout is None and mode is None and mesh is None:
        layout, mesh = COPIES, make_mesh(MESHES[COPIES], devices=attached_devices()[:1])
    prepared, programs = programs_of(model).prepared(
        recipe, *asked_for, lambda: prepare(recipe, layout=layout, mesh=mesh, mode=mode)
    )
    check_simulation(prepared, steps)
    return simulate(
        prepared,
        steps,
        lambda rows: MemoryRecorder(rows, model.dt) if to is None else ZarrRecorder(Path(to), rows, model.dt),
        state=None if state is None else _laid_out(state, model, prepared.program),
        progress=progress,
        kept_in=str(to) if to else "",
        programs=programs,
    )


def _brain(brain: Brain | NirBrain | str | Path) -> Brain:
    if isinstance(brain, Brain):
        return brain
    if isinstance(brain, NirBrain):
        return brain.brain
    return read_nir(brain).brain if Path(brain).suffix == ".nir" else read_brain(Path(brain))


def _check_kinds(*arguments: tuple[str, Any, Any, str]) -> None:
    """Raise for arguments of another type; each entry has a name, a value, the types and what to pass."""
    problems = [
        Problem("argument", name, f"it is {reprlib.repr(value)}", f"{name} takes {what}")
        for name, value, kinds, what in arguments
        # True is an int, and no seed.
        if not isinstance(value, kinds) or isinstance(value, bool)
    ]
    if problems:
        raise BrainError(f"run_brain cannot take {len(problems)} of its arguments", problems)


def _laid_out(state: Any, brain: Brain, program: Program) -> Any:
    """Move a state into the layout of a program, unless it is there already."""
    leaves = flatten_paths(state)[0]
    if deleted := [path for path, leaf in leaves if isinstance(leaf, jax.Array) and leaf.is_deleted()]:
        shown = ", ".join(deleted[:4]) + (", ..." if len(deleted) > 4 else "")
        raise BrainError(
            f"this state was used up by the run that began with it: {len(deleted)} of its {len(leaves)} arrays "
            f"are gone: {shown}\n  fix: the state of that run, run.state; "
            "or begin with a copy, jax.tree.map(jnp.copy, state)"
        )
    there = shardings(program.plan, program.state_shapes, program.mesh)
    same = jax.tree.structure(state) == jax.tree.structure(program.state_shapes)
    if same and all(jax.tree.leaves(jax.tree.map(_is_there, state, program.state_shapes, there))):
        return state
    shapes = jax.eval_shape(brain.init, jax.random.key(0))
    own = {path: leaf.shape for path, leaf in flatten_paths(shapes)[0]}
    numbers = [_num_rows(leaf, own.get(path)) for path, leaf in leaves]
    # Through the host, from which it can go to any layout.
    host = [np.asarray(leaf) for leaf in jax.tree.leaves(gather(state))]
    host = [leaf if num is None else leaf[:num] for leaf, num in zip(host, numbers, strict=True)]
    whole = jax.tree.unflatten(jax.tree.structure(state), host)
    if problems := _differences(whole, shapes):
        raise BrainError(f"the state does not fit this Brain: {counted(len(problems), 'problem')}", problems)
    whole = jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(whole))
    return put(program.pad(whole), program.plan, program.mesh)


def _is_there(leaf: Any, shape: jax.ShapeDtypeStruct, where: jax.sharding.Sharding) -> bool:
    return (
        isinstance(leaf, jax.Array)
        and (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)
        and leaf.sharding.is_equivalent_to(where, leaf.ndim)
    )


def _num_rows(leaf: Any, shape: tuple[int, ...] | None) -> int | None:
    """Count the rows of a leaf that are neurons, if a layout has padded it to divide by its devices."""
    if not (shape and isinstance(leaf, jax.Array) and leaf.ndim and leaf.shape[1:] == shape[1:]):
        return None
    num_devices = leaf.shape[0] // leaf.sharding.shard_shape(leaf.shape)[0]
    return shape[0] if leaf.shape[0] == -(-shape[0] // num_devices) * num_devices else None


def _differences(state: Any, shapes: Any) -> list[Problem]:
    """List the differences between a state and that of a Brain."""
    fix = "run.state of a run of this Brain, or brain.init(jax.random.key(0))"
    return [
        Problem("state", path, f"it is {given or 'missing'}, and the Brain has {own or 'none'}", fix)
        for path, own, given in type_differences(shapes, state, lambda leaf: f"{leaf.dtype}{list(leaf.shape)}")
    ]
