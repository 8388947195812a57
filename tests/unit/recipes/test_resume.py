"""A run that was stopped is continued as if it had not been, on whatever is there now."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import optax
import pytest
from tests.unit.recipes import small

from outlay.core.error_types import CheckpointError
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.data import TrainData
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.step import init_state, train_step
from outlay.train.step_loop import Interrupted

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]


def lines(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def stopped_before(step):
    """The recipe, with somebody who presses Ctrl-C when the batch of a step is asked for."""
    recipe = small.line()

    class Data:
        def __getitem__(self, number):
            if number == step:
                raise KeyboardInterrupt
            return recipe.data[number]

    return dataclasses.replace(recipe, data=Data())


def stopped(path, *, before=9, **options):
    with pytest.raises(Interrupted) as stop:
        run_of(prepare(stopped_before(before), **options), RunOptions(checkpoint_every=4)).run(RunFolder(path))
    return stop.value


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    return path, run_of(prepare(small.line(), layout="fsdp"), RunOptions()).run(RunFolder(path))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("interrupted")
    return path, stopped(path, layout="fsdp")


def test_the_same_arrangement_gives_the_same_losses_bit_for_bit(tmp_path, interrupted, uninterrupted):
    path, stop = interrupted
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    assert "stopped after step" in str(stop)
    assert "the last checkpoint is of step 8" in str(stop)
    result = run_of(prepare(small.line(), layout="fsdp"), RunOptions()).run(RunFolder(tmp_path, resume=True))
    whole_path, whole = uninterrupted
    assert [m["loss"] for m in lines(tmp_path)] == [m["loss"] for m in lines(whole_path)]
    assert [m["step"] for m in lines(tmp_path)] == list(range(1, 13))
    assert (result.resumed_after, result.num_steps, result.num_samples) == (8, 12, 12 * 16)
    assert result.held_out == whole.held_out
    assert "after 12 steps, continued after step 8" in result.facts["training"]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("layout", "mesh"), [("dp", "data=8"), ("fsdp", "data=4,model=2"), ("zero1", "data=2,model=4")], ids=str
)
def test_another_arrangement_gives_the_same_losses(layout, mesh, tmp_path, interrupted, uninterrupted):
    shutil.copytree(interrupted[0], tmp_path, dirs_exist_ok=True)
    run_of(prepare(small.line(), layout=layout, mesh=mesh), RunOptions()).run(RunFolder(tmp_path, resume=True))
    losses, expected = ([m["loss"] for m in lines(path)] for path in (tmp_path, uninterrupted[0]))
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["layout"], [before["layout"] for before in config["before"]]) == (layout, ["fsdp"])


@pytest.mark.thorough  # test_run.py goes on after a kill
def test_a_kill_after_the_last_checkpoint_leaves_lines_that_are_taken_again(tmp_path, uninterrupted):
    stopped(tmp_path, before=11, layout="fsdp")
    assert lines(tmp_path)[-1]["step"] > 8
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "lo')  # the disk was full in the middle of a line
    run_of(prepare(small.line(), layout="fsdp"), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert [m["step"] for m in lines(tmp_path)] == list(range(1, 13))
    assert [m["loss"] for m in lines(tmp_path)] == [m["loss"] for m in lines(uninterrupted[0])]
    assert [m["seconds"] for m in lines(tmp_path)] == sorted(m["seconds"] for m in lines(tmp_path))


@pytest.mark.thorough  # where there is no run one begins too
def test_stopped_before_the_first_checkpoint_it_begins_anew(tmp_path, uninterrupted):
    stopped(tmp_path, before=3, layout="fsdp")
    result = run_of(prepare(small.line(), layout="fsdp"), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert result.resumed_after == 0
    assert [m["loss"] for m in lines(tmp_path)] == [m["loss"] for m in lines(uninterrupted[0])]


def test_where_there_is_no_run_yet_one_begins(tmp_path):
    result = run_of(prepare(small.line()), RunOptions(steps=2, checkpoint_every=2)).run(
        RunFolder(tmp_path / "new", resume=True)
    )
    assert (result.num_steps, result.resumed_after) == (2, 0)
    more = run_of(prepare(small.line()), RunOptions(steps=3)).run(RunFolder(tmp_path / "new", resume=True))
    assert (more.num_steps, more.resumed_after) == (3, 2)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = run_of(prepare(small.line()), RunOptions(checkpoint_every=12)).run(RunFolder(tmp_path))
    again = run_of(prepare(small.line()), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert (again.resumed_after, again.training, again.held_out) == (12, first.training, first.held_out)


def test_forcing_a_new_run_removes_the_old_checkpoints(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=2, checkpoint_every=2)).run(RunFolder(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    folder = RunFolder(tmp_path, force=True)
    assert sorted(tmp_path.rglob("*")) == before  # nothing goes before the new run begins
    folder.write_config({"num_steps": 1})
    marks = [tmp_path / "checkpoints" / "outlay.txt", tmp_path / "outlay.txt"]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [
        *marks[:1],
        tmp_path / "config.json",
        marks[1],
    ]


def refused(path, match, recipe=None, **options):
    before = {file: file.read_bytes() for file in path.glob("*.json*")}
    with pytest.raises(CheckpointError, match=match):
        run_of(prepare(recipe or small.line()), RunOptions(**options)).run(RunFolder(path, resume=True))
    assert {file: file.read_bytes() for file in path.glob("*.json*")} == before


def test_what_cannot_be_continued_is_named_and_left_as_it_was(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=4, checkpoint_every=2)).run(RunFolder(tmp_path))
    other = dataclasses.replace(small.line(), name="plane", seed=3)
    refused(tmp_path, r"2 differences\n  recipe: line there, plane now\n  seed: 0 there, 3 now", other)
    refused(tmp_path, "a checkpoint of step 4, and a run of 3 steps ends before it", steps=3)


def test_another_model_is_refused(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=2, checkpoint_every=2)).run(RunFolder(tmp_path))
    momentum = init_state(lambda key: {"w": jax.random.normal(key, 32)}, optax.sgd(0.1, momentum=0.9))
    step = train_step(small.loss, optax.sgd(0.1, momentum=0.9))
    other = dataclasses.replace(small.line(), init=momentum, step=step)
    refused(tmp_path, r"not in the checkpoint: opt_state.0.trace.w(?s:.)*not in the program: opt_state.0.mu.w", other)


def test_a_run_without_checkpoints_cannot_be_continued(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=2)).run(RunFolder(tmp_path))
    refused(tmp_path, "saved no checkpoints.*\n  fix: --force to start again, with --checkpoint-every N")


def test_a_metrics_file_with_gaps_is_refused(tmp_path):
    run_of(prepare(small.line()), RunOptions(steps=4, checkpoint_every=4)).run(RunFolder(tmp_path))
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(CheckpointError, match=r"cannot be continued after step 4: it has 1 line, and step 2"):
        run_of(prepare(small.line()), RunOptions(steps=6)).run(RunFolder(tmp_path, resume=True))


def test_a_run_does_not_go_on_with_other_examples(tmp_path):
    """Their order follows from how many there are: with others it would be another run, of batches of one shape."""
    run_of(prepare(small.line()), RunOptions(steps=2, checkpoint_every=2)).run(RunFolder(tmp_path))
    fewer = dataclasses.replace(small.line(), data=TrainData(small.line().data[0], batch_size=16))
    with pytest.raises(CheckpointError, match=r"1 difference\n  examples: 72 there, 16 now"):
        run_of(prepare(fewer), RunOptions(steps=4)).run(RunFolder(tmp_path, resume=True))
