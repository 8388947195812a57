"""A training records leaves of its state as a Brain does, and a run that goes on leaves the same recording."""

import dataclasses

import numpy as np
import pytest
from tests.unit.recipes import small
from tests.unit.recipes.test_resume import stopped_before

import outlay
from outlay.core.error_types import CheckpointError, ProgramError
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.recording import Recording
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.step_loop import Interrupted

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]

PATTERNS = ["params.**", "opt_state.**.mu.*"]


def recorded(path):
    recording = Recording.read(path / "recording.zarr")
    return {"steps": recording.steps.tolist(), **{name: recording[name].tolist() for name in recording}}


def test_leaves_are_recorded_and_a_run_that_goes_on_leaves_the_same(tmp_path):
    recipe = small.line().recording(PATTERNS, stride=2)
    result = run_of(prepare(recipe, layout="fsdp"), RunOptions()).run(RunFolder(tmp_path / "whole"))
    whole = recorded(tmp_path / "whole")
    assert whole["steps"] == [1, 3, 5, 7, 9, 11]
    assert result.recorded == ("params.w", "opt_state.0.mu.w")
    assert result.facts["recorded"] == "6 rows of 2 addresses"
    assert len({str(row) for row in whole["params.w"]}) == 6
    interrupted = dataclasses.replace(stopped_before(11), record=recipe.record, stride=2)
    with pytest.raises(Interrupted):
        run_of(prepare(interrupted, layout="fsdp"), RunOptions(checkpoint_every=4)).run(RunFolder(tmp_path / "cut"))
    run_of(prepare(recipe, layout="fsdp"), RunOptions()).run(RunFolder(tmp_path / "cut", resume=True))
    assert recorded(tmp_path / "cut") == whole


def test_recording_changes_nothing_and_the_last_row_is_the_last_state():
    program = prepare(small.line()).program
    data = small.line().data
    plain = outlay.fit(program, data, steps=4, key=outlay_key(), progress=False)
    seen = outlay.fit(program, data, steps=4, key=outlay_key(), progress=False, record="params.w", stride=2)
    assert len(plain.recording) == 0
    assert [m["loss"] for m in plain.history] == [m["loss"] for m in seen.history]
    assert seen.recording.steps.tolist() == [1, 3]
    assert np.array_equal(seen.recording["params.w"][-1], np.asarray(seen.state.params["w"]))


def outlay_key():
    import jax

    return jax.random.key(0)


def test_a_pattern_that_matches_nothing_is_named_before_anything_is_replaced(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=1)).run(RunFolder(tmp_path))
    before = (tmp_path / "config.json").read_bytes()
    wrong = small.line().recording(["params.v", "params.*"])
    with pytest.raises(ProgramError, match=r"1 pattern of what to record(?s:.*)record='params.v'(?s:.*)params\.w"):
        run_of(prepare(wrong), RunOptions(steps=1)).run(RunFolder(tmp_path, force=True))
    assert (tmp_path / "config.json").read_bytes() == before
    with pytest.raises(ProgramError, match="stride=0"):
        run_of(prepare(small.line().recording(["params.*"], 0)), RunOptions(steps=1)).run(RunFolder(tmp_path / "new"))


def test_another_recording_is_another_run(tmp_path):
    run_of(prepare(small.line().recording(["params.*"])), RunOptions(steps=2, checkpoint_every=2)).run(
        RunFolder(tmp_path)
    )
    with pytest.raises(CheckpointError, match=r"1 difference\n  record: \['params.\*'\] there, \[\] now"):
        run_of(prepare(small.line()), RunOptions(steps=4)).run(RunFolder(tmp_path, resume=True))
