"""Runs of one Brain share their programs."""

import gc
import weakref
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from brain_tests.unit.brain.run.tiny import Ramp

import outlay
from outlay.brain import Brain, Connection


@dataclass(frozen=True)
class Traced(Ramp):
    """Counts how often its step is traced."""

    times: ClassVar[list[int]] = []

    def step(self, state, inputs, *, dt):
        self.times.append(1)
        return super().step(state, inputs, dt=dt)


def brain(threshold: float = 1.0) -> Brain:
    return Brain({"n": Traced(threshold=threshold)}, [Connection("inputs:x", "n:signal")], inputs={"x": (2,)})


def run(model: Brain, value: float, steps: int = 20, **options):
    options = {"record": "**", "chunk": 8, **options}
    return outlay.brain.run_brain(model, steps=steps, inputs={"x": value}, **options)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("layout", [None, "by-neuron"])
def test_a_sweep_over_seeds_inputs_and_lengths_compiles_once(layout):
    model = brain()
    run(model, 0.3, layout=layout)
    num = len(Traced.times)
    runs = [run(model, value, steps, seed=seed, layout=layout) for value, steps, seed in ((0.7, 20, 1), (0.2, 12, 2))]
    assert len(Traced.times) == num
    for (value, steps, seed), one in zip(((0.7, 20, 1), (0.2, 12, 2)), runs, strict=True):
        anew = run(brain(), value, steps, seed=seed)
        for address in anew.recording:
            np.testing.assert_array_equal(one[address], anew[address])


def test_what_a_program_depends_on_makes_another_one():
    model = brain()
    run(model, 0.3)
    num = len(Traced.times)
    changed = run(model, 0.3, record="n:out_spikes")
    assert list(changed.recording) == ["n:out_spikes"]
    assert len(Traced.times) > num
    assert run(brain(threshold=0.1), 0.3).rates != run(model, 0.3).rates


def test_programs_go_with_their_brain():
    model = brain()
    run(model, 0.3)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
