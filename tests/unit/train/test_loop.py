import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.errors import ProgramError
from outlay.train.loop import Interrupted, fit

BATCHES = [np.full(8, number, np.float32) for number in range(6)]


def count(state, batch):
    return state + batch.sum(), {"twice": 2 * batch.mean(), "loss": batch.mean()}


@pytest.fixture
def program():
    return outlay.program(
        count, lambda key: jnp.zeros(()), BATCHES[0], layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )


def run(program, data=BATCHES, **options):
    return fit(program, data, num_steps=6, key=jax.random.key(0), progress=False, **options)


def test_every_step_is_taken_in_order_and_remembered(program):
    done = run(program)
    assert float(done.state) == 8 * sum(range(6))
    assert [metrics["loss"] for metrics in done.history] == [0, 1, 2, 3, 4, 5]
    assert [metrics["step"] for metrics in done.history] == [1, 2, 3, 4, 5, 6]
    assert done.num_samples == 48
    assert list(done.history[0]) == ["step", "loss", "twice", "seconds"]


def test_metrics_are_on_disk_before_the_run_ends(program, tmp_path):
    """At most two steps are in flight, so when batch k is asked for, step k - 2 must be in the file."""
    path = tmp_path / "metrics.jsonl"
    lines_when_asked = []

    class Data:
        def __getitem__(self, step):
            lines_when_asked.append(len(path.read_text().splitlines()))
            return BATCHES[step]

    run(program, Data(), metrics_path=path)
    assert lines_when_asked == [0, 0, 1, 2, 3, 4]
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [0, 1, 2, 3, 4, 5]


def test_ctrl_c_keeps_the_metrics_so_far_and_says_how_far_it_came(program, tmp_path):
    class Data:
        def __getitem__(self, step):
            if step == 4:
                raise KeyboardInterrupt
            return BATCHES[step]

    path = tmp_path / "metrics.jsonl"
    with pytest.raises(
        Interrupted, match=r"stopped after step 3 of 6; the metrics so far are kept in .*metrics.jsonl"
    ) as stop:
        run(program, Data(), metrics_path=path)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert len(stop.value.history) == 3
    assert isinstance(stop.value, KeyboardInterrupt)


def test_there_must_be_a_step_to_take(program):
    with pytest.raises(ProgramError, match="num_steps=0: a run takes 1 step or more"):
        fit(program, BATCHES, num_steps=0, key=jax.random.key(0))
