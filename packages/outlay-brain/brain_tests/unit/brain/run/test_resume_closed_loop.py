"""Closed loops and recordings around events end early and go on as if they had never stopped."""

import dataclasses
import json

import numpy as np
import pytest
from brain_tests.unit.brain.run.test_saves import LIGHT, interrupt, left_in, recipe, until
from brain_tests.unit.brain.run.tiny import tiny

from outlay.brain.module import BrainError
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.closed_loop import ClosedLoop
from outlay.brain.run.recording_schedule import Filter, Moments
from outlay.core.error_types import CheckpointError
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.step_loop import Interrupted

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]


class Bath:
    """It gets warmer by what is done, and by chance; an episode ends at 3 degrees."""

    def __init__(self, event=lambda: None, at=-1):
        self.random = np.random.default_rng(0)
        self.actions, self.warmth, self.event, self.at = 0, 0.0, event, at

    def reset(self, *, seed=None):
        self.warmth = 0.0
        return self.random.random(2), {}

    def step(self, action):
        self.actions += 1
        if self.actions == self.at:
            self.event()
        self.warmth += self.random.random() + action / 10
        return np.array([self.warmth, action]), self.warmth, self.warmth >= 3, False, {}


def save(bath):
    return {"warmth": bath.warmth, "actions": bath.actions, "random": json.dumps(bath.random.bit_generator.state)}


def restore(bath, saved):
    bath.warmth, bath.actions = float(saved["warmth"]), int(saved["actions"])
    bath.random.bit_generator.state = json.loads(str(saved["random"]))


def loop(bath, *, steps_per_action=5, **options):
    return ClosedLoop(
        bath,
        encode=lambda observation, reward: {"light": observation / 4 + reward / 10},
        decode=lambda outputs: int(outputs["seen"].sum()),
        steps_per_action=steps_per_action,
        **options,
    )


def in_a_loop(bath, **options):
    both = {"save": save, "restore": restore, **options}
    return BrainRecipe.of(tiny(), name="bath", inputs=loop(bath, **both), steps=60, record=["eye.soma.potential"])


def test_a_closed_loop_goes_on_with_its_environment_where_it_was(tmp_path):
    first = prepare(in_a_loop(Bath()))  # its program is that of all three
    cut, later = (dataclasses.replace(first, recipe=in_a_loop(bath)) for bath in (Bath(interrupt, at=11), Bath()))
    whole = run_of(first, RunOptions()).run(RunFolder(tmp_path / "whole"))
    with pytest.raises(Interrupted, match="the last checkpoint is of step 40"):
        run_of(cut, RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path / "cut"))
    again = run_of(later, RunOptions()).run(RunFolder(tmp_path / "cut", resume=True))
    assert left_in(tmp_path / "cut") == left_in(tmp_path / "whole")
    assert again.episodes == whole.episodes
    assert int(whole.episodes.split(",")[0]) > 1  # some ended before the interruption, some after
    assert "continued after step 40" in again.facts["simulated"]


def test_an_environment_that_cannot_be_saved_is_refused(tmp_path):
    alone = BrainRecipe.of(tiny(), inputs=loop(Bath()), steps=60)
    with pytest.raises(CheckpointError, match=r"a closed loop cannot be saved(?s:.*)fix: ClosedLoop\(..., save="):
        run_of(prepare(alone), RunOptions(checkpoint_every=20)).run(RunFolder(tmp_path))


def test_a_checkpoint_between_two_actions_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"between two actions .*, every 5\n  fix: --checkpoint-every 25"):
        run_of(prepare(in_a_loop(Bath())), RunOptions(checkpoint_every=21)).run(RunFolder(tmp_path))


def test_save_and_restore_go_together_and_give_arrays():
    with pytest.raises(BrainError, match=r"save= is given and restore= is not\n  fix: both"):
        loop(Bath(), save=save)
    odd = loop(Bath(), save=lambda bath: {"it": bath}, restore=restore)
    with pytest.raises(BrainError, match=r"returned 'it' as a Bath, which no file of arrays can hold\n  fix: arrays"):
        odd.to_arrays()


EVENTS = {"stride": 1, "triggers": ["eye:out_spikes > 450 +- 8"], "windows": [(3, 5)]}


def test_what_waits_for_an_event_is_saved(tmp_path):
    uncut = prepare(recipe(**EVENTS))  # its program is that of all three
    run_of(uncut, RunOptions()).run(RunFolder(tmp_path / "whole"))
    whole = left_in(tmp_path / "whole")
    assert whole["steps"] == [3, 4, *range(33, 60)]
    cut = dataclasses.replace(uncut, recipe=recipe(until(46, interrupt), **EVENTS))
    # At step 36 the first three steps before the event at step 41 wait for it.
    with pytest.raises(Interrupted, match="the last checkpoint is of step 36"):
        run_of(cut, RunOptions(checkpoint_every=12)).run(RunFolder(tmp_path / "cut"))
    run_of(uncut, RunOptions()).run(RunFolder(tmp_path / "cut", resume=True))
    assert left_in(tmp_path / "cut") == whole


def test_other_triggers_are_another_run(tmp_path):
    run_of(prepare(recipe(**EVENTS)), RunOptions(steps=20, checkpoint_every=20)).run(RunFolder(tmp_path))
    with pytest.raises(CheckpointError, match=r"1 difference\n  triggers: "):
        run_of(prepare(recipe(**{**EVENTS, "triggers": ["eye:out_spikes > 5"]})), RunOptions()).run(
            RunFolder(tmp_path, resume=True)
        )


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("stop", range(1, 59, 3))
def test_a_filter_that_is_saved_at_any_step_passes_on_the_same_rows(stop):
    moments = Moments.of(["10..14"], ["eye:out_spikes > 400 +- 5"])
    spikes = (LIGHT[:, :1] > 0.6).astype(np.int8)
    types = {"x": ((1,), np.dtype(np.float32))}

    def pieces(filter, start, end, size):
        for first in range(start, end, size):
            steps = np.arange(first, min(first + size, end))
            yield filter(first, {"eye:out_spikes": spikes[steps]}, steps, {"x": LIGHT[steps, :1]})

    def steps_of(rows):
        return [step for steps, _ in rows for step in steps.tolist()]

    one = Filter(moments, 1.0)
    whole = steps_of([*pieces(one, 0, 60, 7), one.rest()])
    first, second = Filter(moments, 1.0), Filter(moments, 1.0)
    begun = steps_of(pieces(first, 0, stop, 4))
    second.continue_from(first.to_arrays(), types)
    assert begun + steps_of([*pieces(second, stop, 60, 6), second.rest()]) == whole
