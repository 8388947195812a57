import itertools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.error_types import ProgramError
from outlay.jobs import heartbeat
from outlay.jobs.job_folder import JobFolder
from outlay.train import metrics_file
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.loop import fit
from outlay.train.step_loop import Interrupted

BATCHES = [np.full(8, number, np.float32) for number in range(6)]


def count(state, batch):
    return state + batch.sum(), {"twice": 2 * batch.mean(), "loss": batch.mean()}


@pytest.fixture
def program():
    return outlay.program(
        count, lambda key: jnp.zeros(()), BATCHES[0], layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )


def run(program, data=BATCHES, **options):
    return fit(program, data, steps=6, key=jax.random.key(0), progress=False, **options)


def test_every_step_is_taken_in_order_and_remembered(program):
    done = run(program)
    assert float(done.state) == 8 * sum(range(6))
    assert [metrics["loss"] for metrics in done.history] == [0, 1, 2, 3, 4, 5]
    assert [metrics["step"] for metrics in done.history] == [1, 2, 3, 4, 5, 6]
    assert done.num_samples == 48
    assert list(done.history[0]) == ["step", "loss", "twice", "seconds"]


def test_a_long_history_is_thinned_out_evenly_and_ends_with_the_last(monkeypatch, program, tmp_path):
    monkeypatch.setattr(metrics_file, "MOST_REMEMBERED", 3)
    path = tmp_path / "metrics.jsonl"
    done = run(program, metrics_path=path)
    assert [metrics["step"] for metrics in done.history] == [1, 3, 5, 6]
    assert (done.num_samples, done.seconds) == (48, done.history[-1]["seconds"])
    assert len(path.read_text().splitlines()) == 6
    history = metrics_file.History({"step": step} for step in range(1, 1000))
    steps = [metrics["step"] for metrics in history]
    assert len(steps) <= 4
    assert (steps[0], steps[-1]) == (1, 999)
    assert len({after - before for before, after in itertools.pairwise(steps[:-1])}) == 1


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
    assert len(stop.value.partial) == 3
    assert isinstance(stop.value, KeyboardInterrupt)


def test_there_must_be_a_step_to_take(program):
    with pytest.raises(ProgramError, match="steps=0: a run needs at least 1 step"):
        fit(program, BATCHES, steps=0, key=jax.random.key(0))


def test_a_run_is_saved_every_so_many_steps_and_at_the_end(program, tmp_path):
    checkpoints = Checkpoints(tmp_path / "saved", keep=9)
    run(program, checkpoints=checkpoints, checkpoint_every=4)
    assert checkpoints.steps() == [4, 6]
    for step, total in ((4, 48), (6, 120)):
        assert float(checkpoints.restore(program, step)[1]) == total
    only_the_last = Checkpoints(tmp_path / "last")
    run(program, checkpoints=only_the_last)
    assert only_the_last.steps() == [6]


def test_a_run_goes_on_after_a_step_with_the_batches_that_follow(program, tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = run(program, metrics_path=path)
    asked = []

    class Data:
        def __getitem__(self, step):
            asked.append(step)
            return BATCHES[step]

    state = jax.device_put(jnp.float32(8 * (0 + 1 + 2 + 3)), jax.tree.leaves(whole.state)[0].sharding)
    done = run(program, Data(), metrics_path=path, start=(4, state))
    assert asked == [4, 5]
    assert float(done.state) == float(whole.state)
    assert [metrics["loss"] for metrics in done.history] == [0, 1, 2, 3, 4, 5]
    assert [metrics["step"] for metrics in done.history] == [1, 2, 3, 4, 5, 6]
    assert done.history[:4] == whole.history[:4]
    assert done.num_samples == 48
    assert [json.loads(line) for line in path.read_text().splitlines()] == done.history


def test_before_a_checkpoint_is_there_its_metrics_are_in_the_file(program, tmp_path):
    path = tmp_path / "metrics.jsonl"

    class Watching(Checkpoints):
        def save(self, step, state):
            assert len(path.read_text().splitlines()) == step
            super().save(step, state)

    run(program, metrics_path=path, checkpoints=Watching(tmp_path / "saved"), checkpoint_every=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_every": 0}, "checkpoint_every=0: checkpoints must be at least 1 step apart"),
        (
            {"checkpoint_every": 2},
            "checkpoint_every=2, but no folder for checkpoints\n  fix: checkpoints=outlay.Checkpoints",
        ),
        ({"start": (7, None)}, "steps=6: the run to continue has already taken 7 steps"),
    ],
)
def test_what_cannot_be_saved_or_continued_is_refused_first(program, options, message):
    with pytest.raises(ProgramError, match=message):
        run(program, **options)


def test_after_the_last_step_a_program_is_not_taken_to_be_stepping(program, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_file", None)  # and again when the test ends
    heartbeat.start_beating(JobFolder(tmp_path), 0)
    run(program)
    beat = JobFolder(tmp_path).beat(0)
    assert (beat.step, beat.doing) == (6, "what follows the last step")


def returning(outputs):
    def step(state, batch):
        return state + batch.sum(), outputs(batch)

    return outlay.program(
        step, lambda key: jnp.zeros(()), BATCHES[0], layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )


def test_outputs_are_recorded_whatever_kind_of_number_they_are():
    done = run(
        returning(
            lambda batch: {
                "loss": batch.mean(),
                "rate": 1e-3,
                "on": True,
                "num": np.int32(3),
                "nothing": None,
                "top/1": batch.max(),
                "of": {"a": batch.min(), "b": [2.0, batch[0] > 0]},
            }
        )
    )
    last = done.history[-1]
    assert last.pop("seconds") >= 0
    assert last.pop("rate") == pytest.approx(1e-3)
    assert last == {"step": 6, "loss": 5, "on": 1, "num": 3, "top/1": 5, "of.a": 5, "of.b.0": 2, "of.b.1": 1}


def test_outputs_that_are_no_numbers_are_all_named_before_the_first_step():
    program = returning(
        lambda batch: {
            "loss": batch.mean(),
            "each": jnp.ones((8, 8)),
            "step": 1,
            "wave": 1j,
            "key": jax.random.key(0),
            "many": jnp.ones(300),
        }
    )
    message = (
        r"(?s)5 outputs.*: each\n.*shape \(8, 8\), float32\n.*a histogram.*: key\n.*: many\n.*: step\n.*rename it"
        r".*: wave\n"
    )
    with pytest.raises(ProgramError, match=message):
        run(program)


def test_a_row_of_numbers_is_a_metric_in_memory_and_in_the_file(tmp_path):
    program = returning(lambda batch: {"loss": batch.mean(), "counts": jnp.array([1.0, jnp.nan])})
    path = tmp_path / "metrics.jsonl"
    done = run(program, metrics_path=path)
    assert done.history[0]["counts"][0] == 1.0
    assert json.loads(path.read_text().splitlines()[0])["counts"] == [1.0, None]


def test_outputs_without_names():
    with pytest.raises(
        ProgramError, match=r'must be a dictionary, not shape \(\)\n  fix: return state, {"loss": loss}'
    ):
        run(returning(lambda batch: batch.mean()))


def test_data_that_is_no_function_of_the_step(program):
    with pytest.raises(ProgramError, match=r"(?s)a generator has no indexing\n  fix: list\(data\)"):
        run(program, (batch for batch in BATCHES))


def test_data_of_too_few_steps(program):
    with pytest.raises(
        ProgramError, match=r"(?s)6 steps need data\[0\] to data\[5\], but there is no data\[4\].*steps=4"
    ):
        run(program, BATCHES[:4])


def held_out(program, state):
    return {"loss": 100 - float(state)}


def test_evaluations_are_metrics_of_their_step(program, tmp_path):
    path = tmp_path / "metrics.jsonl"
    done = run(program, evaluate=held_out, evaluate_every=4, metrics_path=path)
    losses = {metrics["step"]: metrics.get("evaluate.loss") for metrics in done.history}
    assert losses == {1: None, 2: None, 3: None, 4: 100 - 48, 5: None, 6: 100 - 120}
    assert json.loads(path.read_text().splitlines()[3])["evaluate.loss"] == 52
    assert [metrics["step"] for metrics in run(program, evaluate=held_out).history if "evaluate.loss" in metrics] == [6]


def test_training_ends_early_after_the_step_that_was_evaluated_and_is_saved(program, tmp_path):
    seen = []

    def on_step(metrics):
        seen.append(metrics["step"])
        return metrics.get("evaluate.loss", 100) < 60

    checkpoints = Checkpoints(tmp_path)
    done = run(program, evaluate=held_out, evaluate_every=2, on_step=on_step, checkpoints=checkpoints)
    assert seen == [1, 2, 3, 4]
    assert float(done.state) == 8 * sum(range(4))
    assert (checkpoints.steps(), done.num_samples) == ([4], 32)


def test_without_evaluation_the_step_that_was_begun_is_finished(program):
    done = run(program, on_step=lambda metrics: metrics["step"] == 2)
    assert [metrics["step"] for metrics in done.history] == [1, 2, 3]


def test_evaluations_that_cannot_be(program):
    with pytest.raises(
        ProgramError, match=r"evaluate_every=3, but no evaluation function\n  fix: pass evaluate=lambda"
    ):
        run(program, evaluate_every=3)
    with pytest.raises(ProgramError, match="evaluate_every=0"):
        run(program, evaluate=held_out, evaluate_every=0)
    with pytest.raises(ProgramError, match=r"donated the state.*\n  fix: a program that only reads"):
        run(program, evaluate=lambda program, state: program(state, BATCHES[0])[1])


class Read:
    """Batches that remember when they were read, and by which thread."""

    def __init__(self, batches=BATCHES):
        self.batches = batches
        self.is_read = [threading.Event() for _ in range(9)]
        self.threads = set()

    def __getitem__(self, step):
        self.threads.add(threading.current_thread().name)
        self.is_read[step].set()
        return self.batches[step]


def test_a_thread_reads_so_many_batches_ahead_and_no_more(program):
    data = Read()
    after_the_first = []

    def evaluate(program, state):
        if not after_the_first:
            after_the_first.extend([data.is_read[2].wait(timeout=280), data.is_read[3].is_set()])
        return {}

    done = run(program, data, read_ahead=2, evaluate=evaluate, evaluate_every=1)
    assert after_the_first == [True, False]
    assert [metrics["loss"] for metrics in done.history] == [0, 1, 2, 3, 4, 5]
    assert [event.is_set() for event in data.is_read] == [True] * 6 + [False] * 3
    assert data.threads == {"outlay-read-ahead_0"}
    assert not data.threads & {thread.name for thread in threading.enumerate()}


def test_what_is_wrong_with_a_batch_is_told_at_its_step(program, tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ProgramError, match=r"the data ends early: .* there is no data\[3\]"):
        run(program, Read(BATCHES[:3]), read_ahead=4, metrics_path=path)
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [0, 1, 2]
    with pytest.raises(ProgramError, match="read_ahead=-1: the number of batches"):
        run(program, read_ahead=-1)
