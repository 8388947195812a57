import numpy as np
import pytest
from brain_tests.unit.brain.run.tiny import tiny

import outlay
from outlay.brain.module import BrainError
from outlay.brain.run.closed_loop import ClosedLoop
from outlay.brain.run.run_brain import run_brain


class Bath:
    """It gets warmer by what is done; an episode ends at 3 degrees."""

    def __init__(self):
        self.seeds, self.actions = [], []

    def reset(self, *, seed=None):
        self.seeds.append(seed)
        self.warmth = 0.0
        return np.array([0.0, 0.0]), {}

    def step(self, action):
        self.actions.append(action)
        self.warmth += 1
        return np.array([self.warmth, action]), self.warmth, self.warmth >= 3, False, {}


def loop(**options):
    seen = []

    def encode(observation, reward):
        seen.append((observation.tolist(), reward))
        return {"light": observation / 4}

    bath = Bath()
    made = ClosedLoop(bath, encode=encode, decode=lambda outputs: int(outputs["seen"].sum()), **options)
    return made, bath, seen


def test_an_action_comes_of_the_outputs_of_its_steps_and_changes_the_inputs_after_it():
    made, bath, seen = loop(steps_per_action=5, seed=3)
    run = run_brain(tiny(), steps=40, inputs=made, record=["eye.soma.potential"])
    per_action = run.outputs["seen"].reshape(8, -1).sum(1).astype(int).tolist()
    assert bath.actions == per_action
    assert any(per_action)
    assert seen[1][0] == [1.0, per_action[0]]
    assert bath.seeds == [3, None, None]
    # The potential of the first action's steps: nothing is seen.
    assert not run["eye.soma.potential"][:5].any()
    assert run["eye.soma.potential"][5].any()


def test_episodes_end_and_begin_while_the_brain_goes_on():
    made, _, seen = loop(steps_per_action=5)
    run = run_brain(tiny(), steps=40, inputs=made)
    assert [(e.start, e.num_actions, e.reward) for e in run.episodes] == [(0, 3, 6.0), (15, 3, 6.0)]
    assert seen[3] == ([0.0, 0.0], 3.0)  # a new episode, and the reward that ended the last one
    assert "episodes  2, mean reward 6.0" in str(run)


@pytest.mark.compiles
def test_a_run_may_end_between_two_actions():
    made, bath, _ = loop(steps_per_action=15)
    assert run_brain(tiny(), steps=40, inputs=made).num_steps == 40
    assert len(bath.actions) == 2


def test_the_stride_divides_the_steps_between_actions():
    with pytest.raises(BrainError, match=r"stride=3 does not divide the 5 steps between two actions"):
        run_brain(tiny(), steps=40, inputs=loop(steps_per_action=5)[0], stride=3)


def test_what_is_no_environment():
    with pytest.raises(BrainError, match="a dict is not an environment: it has no reset and no step"):
        ClosedLoop({}, encode=lambda o, r: {}, decode=lambda o: 0)
    with pytest.raises(outlay.OutlayError, match="steps_per_action=0"):
        loop(steps_per_action=0)


def test_inputs_that_encode_forgets_are_named():
    made = ClosedLoop(Bath(), encode=lambda o, r: {"sound": o}, decode=lambda o: 0)
    with pytest.raises(BrainError, match=r"2 inputs of the Brain do not fit"):
        run_brain(tiny(), steps=40, inputs=made)
