"""A run that ends early and is gone on with leaves what it would have left, had it never stopped."""

import dataclasses
import functools
import os
import shutil
import signal

import jax
import ml_dtypes
import numpy as np
import pytest
from brain_tests.unit.brain.run.tiny import tiny

import outlay
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.run_statistics import Collected
from outlay.brain.run.simulate import BrainStopped
from outlay.core.error_types import CheckpointError, OutputError, RecipeError
from outlay.jobs import stop_request
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.recording import Recording
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.step_loop import Interrupted

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]

LIGHT = np.random.default_rng(0).random((60, 2)).astype(np.float32)
RECORD = ["*:out_spikes", "**.potential"]
TEXTS = ("rates.csv",)


def recipe(light=LIGHT, **options):
    given = {"record": RECORD, "stride": 2, "chunk": 4, "steps": 60, **options}
    return BrainRecipe.of(tiny(), name="eye", inputs={"light": light}, **given)


def left_in(path):
    """What a run has left, apart from what says when and where it ran."""
    recording = Recording.read(path / "recording.zarr")
    return {
        "steps": recording.steps.tolist(),
        **{name: recording[name].tolist() for name in recording},
        **{name: (path / name).read_text() for name in TEXTS},
    }


def until(step, event):
    """Inputs at one step of which something happens."""

    def light(number):
        return event() if number == step else LIGHT[number]

    return light


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    run_of(prepared(), RunOptions()).run(RunFolder(path))
    return left_in(path)


@functools.cache
def compiled(mesh=8, **options):
    """Over so many devices; one program for all runs: chunks of 4 steps divide those of nearly all checkpoints."""
    axis = "neurons" if options.get("layout") == "by-neuron" else "one" if mesh == 1 else "devices"
    return prepare(recipe(), mesh=outlay.mesh(f"{axis}={mesh}", devices=jax.devices()[:mesh]), **options)


def prepared(light=LIGHT, **options):
    """A run with inputs of its own."""
    return dataclasses.replace(compiled(**options), recipe=recipe(light))


def stopped(path, **options):
    with pytest.raises(Interrupted, match=r"; the last checkpoint is of step 40$"):
        run_of(prepared(until(57, interrupt), **options), RunOptions(checkpoint_every=20)).run(RunFolder(path))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"layout": "copies", "mesh": 1}, {"layout": "by-module", "mode": "placed"}),
        ({"layout": "by-neuron"}, {"layout": "by-neuron", "mesh": 2}),
        ({"layout": "by-module", "mode": "placed"}, {"layout": "copies"}),
    ],
    ids=["one-to-placed", "8-to-2-of-3-neurons", "placed-to-8"],
)
def test_it_goes_on_under_another_layout_as_if_it_had_never_stopped(tmp_path, uninterrupted, before, after):
    stopped(tmp_path, **before)
    assert len(Recording.read(tmp_path / "recording.zarr").steps) > 20  # what is dropped, and recorded again
    result = run_of(prepared(**after), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted
    assert (result.num_steps, result.num_rows) == (60, 30)


def test_the_outputs_and_pictures_are_of_the_whole_run():
    brain = tiny()
    whole = outlay.brain.run_brain(brain, steps=60, inputs={"light": LIGHT})
    shapes = {**whole.outputs, "eye:out_spikes": np.zeros((60, 3), np.int8), "count:signal": whole.outputs["seen"]}
    first, second = Collected(brain, shapes), Collected(brain, shapes)
    spikes = np.arange(180).reshape(60, 3) % 5 == 0
    written = {"seen": whole.outputs["seen"], "eye:out_spikes": spikes.astype(np.int8)}
    first.add({name: values[:40] for name, values in written.items()})
    second.continue_from(first.to_arrays(seconds=1.5))
    second.add({name: values[40:] for name, values in written.items()})
    assert second.seconds == 1.5
    assert np.array_equal(second.outputs["seen"], whole.outputs["seen"])
    late = second.activity.recent("eye:out_spikes")
    assert [late.times.tolist(), late.neurons.tolist()] == [axis.tolist() for axis in np.nonzero(spikes)]
    assert second.activity.counts("eye:out_spikes").tolist() == spikes.sum(1).tolist()


def test_narrow_outputs_come_back_from_a_file(tmp_path):
    shapes = {"seen": np.zeros((1, 1), ml_dtypes.bfloat16), "eye:out_spikes": np.zeros((1, 3), np.int8)}
    first, second = Collected(tiny(), shapes), Collected(tiny(), shapes)
    first.add({"seen": np.ones((2, 1), ml_dtypes.bfloat16), "eye:out_spikes": np.zeros((2, 3), np.int8)})
    np.savez(tmp_path / "it.npz", **first.to_arrays(seconds=0))
    with np.load(tmp_path / "it.npz") as arrays:
        second.continue_from(dict(arrays))
    assert second.outputs["seen"].dtype == ml_dtypes.bfloat16
    assert second.outputs["seen"].tolist() == [[1], [1]]


def test_a_run_that_is_no_number_goes_on_once_its_input_is_mended(tmp_path, uninterrupted):
    with pytest.raises(BrainStopped, match=r"before step 52.*; the last checkpoint is of step 40"):
        run_of(prepared(until(53, lambda: np.nan)), RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path))
    run_of(prepared(), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted


@pytest.mark.thorough  # test_resume.py begins anew
def test_stopped_before_the_first_checkpoint_it_begins_anew(tmp_path, uninterrupted):
    with pytest.raises(Interrupted):
        run_of(prepared(until(11, interrupt)), RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path))
    run_of(prepared(), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted


@pytest.mark.thorough  # it goes on above
def test_a_run_that_ended_between_two_recorded_steps_goes_on_with_the_same_ones(tmp_path, uninterrupted):
    run_of(prepared(), RunOptions(steps=45, checkpoint_every=18)).run(RunFolder(tmp_path))  # some inside of a chunk
    run_of(prepared(), RunOptions(steps=60)).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted


def test_a_finished_run_is_made_longer(tmp_path, uninterrupted):
    run_of(prepared(), RunOptions(steps=40, checkpoint_every=20)).run(RunFolder(tmp_path))
    run_of(prepared(), RunOptions(steps=60)).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted
    assert sorted(file.name for file in (tmp_path / "collected").iterdir()) == ["20.npz", "40.npz", "60.npz"]


def test_a_signal_saves_and_ends_it(tmp_path, uninterrupted, monkeypatch, capsys):
    monkeypatch.setattr(stop_request, "_is_requested", False)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    asks = until(9, lambda: os.kill(os.getpid(), signal.SIGUSR1) or LIGHT[9])
    with pytest.raises(SystemExit) as stop:
        run_of(prepared(asks), RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path))
    signal.signal(signal.SIGUSR1, before)
    assert stop.value.code == stop_request.STOPPED
    assert "stopped on request after step 12 of 60" in capsys.readouterr().err
    monkeypatch.setattr(stop_request, "_is_requested", False)
    run_of(prepared(), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == uninterrupted


def test_a_checkpoint_between_two_recorded_steps_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"every 20 steps would be between two of .*\n  fix: --checkpoint-every 24"
    ):
        run_of(prepare(recipe(stride=8)), RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path))


def test_another_run_is_refused_and_left_as_it_was(tmp_path):
    run_of(prepared(), RunOptions(steps=40, checkpoint_every=20)).run(RunFolder(tmp_path))
    before = left_in(tmp_path)
    with pytest.raises(CheckpointError, match=r"2 differences\n  record: .*\n  stride: 2 there, 1 now"):
        run_of(prepare(recipe(record=["*:out_spikes"], stride=1)), RunOptions()).run(RunFolder(tmp_path, resume=True))
    with pytest.raises(CheckpointError, match=r"1 difference\n  inputs: \w+ there, \w+ now\n  fix: another --run"):
        run_of(prepared(0.5), RunOptions()).run(RunFolder(tmp_path, resume=True))
    with pytest.raises(CheckpointError, match=r"has a checkpoint of step 40, and a run of 20 steps ends before it"):
        run_of(prepared(), RunOptions(steps=20)).run(RunFolder(tmp_path, resume=True))
    assert left_in(tmp_path) == before


def test_the_recording_is_missed(tmp_path):
    run_of(prepared(), RunOptions(steps=40, checkpoint_every=20)).run(RunFolder(tmp_path))
    shutil.rmtree(tmp_path / "recording.zarr")
    with pytest.raises(OutputError, match=r"recording.zarr, the recording of the run, is gone\n  fix: restore it"):
        run_of(prepared(), RunOptions(steps=60)).run(RunFolder(tmp_path, resume=True))


def test_what_was_collected_is_missed(tmp_path):
    run_of(prepared(), RunOptions(steps=40, checkpoint_every=20)).run(RunFolder(tmp_path))
    (tmp_path / "collected" / "40.npz").unlink()
    with pytest.raises(CheckpointError, match=r"40.npz, which the run collected in its first 40 steps, cannot be"):
        run_of(prepared(), RunOptions(steps=60)).run(RunFolder(tmp_path, resume=True))


def test_what_is_only_for_training_is_refused_before_the_folder_is_touched(tmp_path):
    training = {"steps_per_call": 4}
    with pytest.raises(
        RecipeError, match=r"--steps-per-call is for recipes that are trained, and 'eye' is not\n  fix:"
    ):
        run_of(prepared(), RunOptions(**training)).run(RunFolder(tmp_path))
    assert not (tmp_path / "config.json").exists()
