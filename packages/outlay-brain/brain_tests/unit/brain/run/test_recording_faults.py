"""Recordings that cannot be written: an error of Outlay's, and the rows before it are there."""

import dataclasses
import json
import os
import time

import numpy as np
import pytest
from brain_tests.unit.brain.run.test_saves import prepared, recipe, until
from brain_tests.unit.brain.run.tiny import tiny
from tests.unit.recipes.test_run_faults import disk_that_may_fill_up

import outlay
from outlay.brain.module import BrainError
from outlay.brain.run.recording_schedule import Moments
from outlay.core.error_types import CheckpointError, DataError, OutputError, RunFolderError
from outlay.core.own_folder import MARK
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.recording import Recording, ZarrRecorder
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions

pytestmark = pytest.mark.usefixtures("blank_pictures")

ROW = {"eye:out_spikes": ((2**16,), np.dtype(np.int8))}


@pytest.mark.parametrize("to", ["/proc/x.zarr", "/dev/null/x.zarr", "a\0b"])
def test_what_cannot_be_a_folder_is_an_error_of_ours(to):
    with pytest.raises(OutputError, match=r"the recording .* cannot be made: "):
        outlay.brain.run_brain(tiny(), steps=2, record=["*:out_spikes"], to=to)


def test_a_disk_that_fills_up_leaves_the_rows_before(tmp_path):
    noise = np.random.default_rng(0).integers(0, 100, (8, 2**16), np.int8)
    recorder = ZarrRecorder(tmp_path / "x.zarr", ROW, 1.0)
    recorder.append(np.arange(8), {"eye:out_spikes": noise})
    with disk_that_may_fill_up() as may_hold:
        may_hold(2**16)
        with pytest.raises(OutputError, match=r"cannot be extended beyond its 8 rows: .*"):
            recorder.append(np.arange(8, 16), {"eye:out_spikes": noise})
    there = Recording.read(tmp_path / "x.zarr")
    assert there.steps.tolist() == list(range(8))
    assert np.array_equal(there["eye:out_spikes"], noise)


@pytest.mark.compiles
def test_after_an_exception_what_ran_before_it_is_recorded(tmp_path):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_of(prepared(until(30, fail)), RunOptions()).run(RunFolder(tmp_path))
    assert Recording.read(tmp_path / "recording.zarr").steps.tolist() == list(range(1, 28, 2))


@pytest.mark.compiles
def test_what_is_beside_the_states_and_cannot_be_written_is_told_with_its_step(tmp_path):
    with disk_that_may_fill_up() as may_hold:

        def fill():
            may_hold(600)
            return np.zeros(2, np.float32)

        with pytest.raises((CheckpointError, OutputError), match="cannot be written"):
            run_of(prepared(until(30, fill)), RunOptions(checkpoint_every=40)).run(RunFolder(tmp_path))
    run_of(prepared(), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert len(Recording.read(tmp_path / "recording.zarr").steps) == 30


@pytest.mark.compiles
def test_a_disk_that_fills_up_under_a_recording_is_told_with_the_last_checkpoint(tmp_path):
    with disk_that_may_fill_up() as may_hold:

        def fill():
            give_up = time.monotonic() + 280
            while not (tmp_path / "checkpoints" / "16").exists() and time.monotonic() < give_up:
                time.sleep(0.01)
            may_hold(1)
            return np.zeros(2, np.float32)

        folder = RunFolder(tmp_path)
        with pytest.raises(OutputError, match=r"the recording .* cannot be extended .*checkpoint.* step 16"):
            run_of(prepared(until(30, fill)), RunOptions(checkpoint_every=16)).run(folder)


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["recording.zarr", "collected", "rates.csv", "graph.png"])
def test_a_name_that_somebody_else_uses_in_the_run_folder(tmp_path, name):
    folder = RunFolder(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").write_text("x")
    with pytest.raises(RunFolderError, match=rf"{name} is in the way"):
        run_of(prepared(), RunOptions(steps=20, checkpoint_every=20)).run(folder)
    assert (tmp_path / name / "mine").read_text() == "x"


@pytest.mark.compiles
def test_saves_remove_what_they_wrote_themselves_and_no_other_file(tmp_path):
    def put():
        (tmp_path / "collected" / "7.npz").write_text("mine")
        return np.zeros(2, np.float32)

    run_of(prepared(until(17, put)), RunOptions(checkpoint_every=8)).run(RunFolder(tmp_path))
    saved = sorted(os.listdir(tmp_path / "checkpoints"), key=len)
    steps = [name for name in saved if name.isdecimal()]
    assert len(steps) == 3
    assert {"7.npz", *(f"{step}.npz" for step in steps)} <= set(os.listdir(tmp_path / "collected"))
    assert "8.npz" not in os.listdir(tmp_path / "collected")


@pytest.mark.compiles
def test_force_leaves_what_others_put_into_the_recording(tmp_path):
    run_of(prepared(), RunOptions(steps=20, checkpoint_every=20)).run(RunFolder(tmp_path))
    (tmp_path / "collected" / "notes.npz").write_text("mine")
    run_of(prepared(), RunOptions(steps=10)).run(RunFolder(tmp_path, force=True))
    assert os.listdir(tmp_path / "collected") == ["notes.npz"]
    assert len(Recording.read(tmp_path / "recording.zarr").steps) == 5


@pytest.mark.compiles
def test_force_on_a_run_that_cannot_be_taken_to_its_end_removes_nothing(tmp_path):
    short = recipe(np.ones((20, 2), np.float32))
    run_of(prepare(short), RunOptions(steps=10, checkpoint_every=10)).run(RunFolder(tmp_path))

    def left():  # without the marks, which say who used the folder last
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != MARK}

    before = left()
    late = dataclasses.replace(short, moments=Moments.of(["30..40"], []))
    for longer, says, steps in ((short, "inputs for 20 steps, but the run needs 21", 21), (late, "window", 20)):
        with pytest.raises(BrainError, match=says):
            run_of(prepare(longer), RunOptions(steps=steps)).run(RunFolder(tmp_path, force=True))
        assert left() == before


@pytest.mark.parametrize(
    "about",
    [
        "[1, 2]",
        "{}",
        '{"attributes": {"dt": "x", "addresses": []}}',
        '{"attributes": {"dt": 1, "addresses": ["../x"]}}',
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, about):
    recorder = ZarrRecorder(tmp_path / "x.zarr", ROW, 1.0)
    assert json.loads((tmp_path / "x.zarr" / "zarr.json").read_text())["attributes"]["dt"] == 1.0
    (tmp_path / "x.zarr" / "zarr.json").write_text(about)
    with pytest.raises(DataError, match="is not a recording of a run"):
        recorder.recording()
