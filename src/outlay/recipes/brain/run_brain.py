"""`outlay.run_brain`: a Brain from Python, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from outlay.brain.brain import Brain
from outlay.brain.files.read import read_brain
from outlay.core.jax_compat import attached_devices
from outlay.layout.layout import Layout
from outlay.meshes.build import mesh as make_mesh
from outlay.recipes.brain.brain_recipe import CHUNK, BrainRecipe, refuse_no_count
from outlay.recipes.brain.brain_run import BrainRun
from outlay.recipes.brain.inputs.closed_loop import ClosedLoop
from outlay.recipes.brain.layouts import COPIES, MESHES
from outlay.recipes.brain.recording.disk import ZarrRecorder
from outlay.recipes.brain.recording.memory import MemoryRecorder
from outlay.recipes.brain.simulate import simulate
from outlay.recipes.prepare import prepare


def run_brain(
    brain: Brain | str | Path,
    *,
    steps: int,
    inputs: Mapping[str, Any] | ClosedLoop | None = None,
    record: Sequence[str] = (),
    stride: int = 1,
    windows: Sequence[tuple[float, float] | str] = (),
    triggers: Sequence[str] = (),
    to: str | Path | None = None,
    state: Any = None,
    seed: int = 0,
    layout: str | Layout | None = None,
    mesh: Mesh | None = None,
    mode: str | None = None,
    chunk: int = CHUNK,
    progress: bool = False,
) -> BrainRun:
    """Run a Brain: many steps in one compiled loop, on one device unless a layout is given.

    Args:
        brain: the Brain, or its file.
        steps: how many steps of dt.
        inputs: for each input of the Brain an array with one entry a step, a number or an array for all steps, or a
            function from the step, counted from 0; or a `ClosedLoop`. An input that is left out gets slow waves.
        record: what is recorded: patterns of addresses, such as `*_ex:out_spikes`, `**.soma.potential` or
            `B_in.synapses.kernel`. Recording changes nothing of the result.
        stride: record after every so many steps.
        windows: record only in these pieces of time, as (from, to) in ms or as text, `"100..200"`.
        triggers: record only around events, such as `"A_ex:out_spikes > 80 +- 50"`: 50 ms before and after the
            population's mean rate over 10 ms is above 80 Hz.
        to: a folder that the recording is written to as Zarr while the run goes on; in memory if None.
        state: what to begin with, such as `run.state` of an earlier run under the same layout; it is used up.
        seed: of what is drawn at random when the state is made.
        layout: `copies`, `by-neuron`, `by-module`, or a `Layout`.
        mesh: the mesh; all devices where a layout is given, and else the first one alone.
        mode: how it is executed; as goes with the layout if None.
        chunk: steps in one call of the program.
        progress: show time, speed and rates on stderr.

    Raises:
        BrainError: inputs do not fit, an address matches nothing; or the run stopped, because inputs or state were not
            finite: then `error.recording` is what was recorded before.

    Example:
        >>> from outlay.brain.brain import Brain
        >>> from outlay.brain.connection import Connection
        >>> from outlay.brain.spikers.linear import LinearSpiker
        >>> brain = Brain({"eye": LinearSpiker()}, [Connection("inputs:light", "eye:signal")], inputs={"light": (3,)})
        >>> run = outlay.run_brain(brain, steps=100, inputs={"light": [0.0, 0.5, 1.0]}, record=["*:spikes"])
        >>> run["eye:spikes"].shape, run.times[-1].item()
        ((100, 3), 99.0)
    """
    refuse_no_count("steps", steps)
    found = brain if isinstance(brain, Brain) else read_brain(Path(brain))
    recipe = BrainRecipe.of(
        found,
        inputs=inputs,
        num_steps=steps,
        record=record,
        stride=stride,
        windows=windows,
        triggers=triggers,
        seed=seed,
        chunk=chunk,
    )
    if isinstance(layout, Layout):
        recipe, layout = recipe.with_layout(layout), None
    elif layout is None and mode is None and mesh is None:
        layout, mesh = COPIES, make_mesh(MESHES[COPIES], devices=attached_devices()[:1])
    prepared = prepare(recipe, layout=layout, mesh=mesh, mode=mode)
    return simulate(
        prepared,
        steps,
        lambda rows: MemoryRecorder(rows, found.dt) if to is None else ZarrRecorder(Path(to), rows, found.dt),
        state=state,
        progress=progress,
        kept_in=str(to) if to else "",
    )
