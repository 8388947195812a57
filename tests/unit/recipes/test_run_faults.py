"""Disks that fill up and folders that are none: an error of Outlay's that loses nothing, whenever it comes."""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import time
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from tests.unit.cli.command import LINE, command_here
from tests.unit.recipes import small

from outlay.core.error_types import CheckpointError, OutlayError, OutputError, ProgramError, RunFolderError
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.recipes.run_result import ResultNotWritten
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions


@contextlib.contextmanager
def disk_that_may_fill_up():
    """Gives what sets how long a file may become; more is refused by the kernel as on a full disk."""
    # JAX's cache of compiled programs, which the tests have, would complain of the full disk too.
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()


def at_step(step, event):
    """The recipe, with something that happens when the batch of a step is asked for."""
    recipe = small.line()

    class Data:
        def __getitem__(self, number):
            if number == step:
                event()
            return recipe.data[number]

    return dataclasses.replace(recipe, data=Data())


def lines(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def contents(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished")
    run_of(prepare(small.line()), RunOptions(steps=4, checkpoint_every=2)).run(RunFolder(path))
    return path


@pytest.fixture
def earlier(finished, tmp_path):
    """A finished run with checkpoints."""
    return Path(shutil.copytree(finished, tmp_path, dirs_exist_ok=True))


def of_the_run(path):
    """All but the mark, where it is noted who has had the folder."""
    return {name: content for name, content in contents(path).items() if name.name != "outlay.txt"}


def test_a_disk_that_is_full_before_the_run(tmp_path):
    with disk_that_may_fill_up() as may_hold:
        prepared, folder = prepare(small.line()), RunFolder(tmp_path)
        may_hold(300)
        with pytest.raises(RunFolderError, match=r"config.json cannot be written: File too large"):
            run_of(prepared, RunOptions()).run(folder)
    assert run_of(prepare(small.line()), RunOptions(steps=2)).run(RunFolder(tmp_path)).num_steps == 2


@pytest.mark.compiles
def test_a_disk_that_fills_up_in_the_run(tmp_path):
    with disk_that_may_fill_up() as may_hold:

        def fill():
            while not (tmp_path / "checkpoints" / "8").exists():  # it is written beside the steps
                time.sleep(0.01)
            may_hold((tmp_path / "metrics.jsonl").stat().st_size + 10)

        message = (
            r"metrics.jsonl cannot be written: .*; the run stopped after step \d+ of 12; the last checkpoint is of"
        )
        with pytest.raises(OutputError, match=message):
            run_of(prepare(at_step(9, fill)), RunOptions(checkpoint_every=4)).run(RunFolder(tmp_path))
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, len(lines(tmp_path)) + 1))
    result = run_of(prepare(small.line()), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert result.resumed_after == 8


@pytest.mark.compiles
def test_a_disk_that_fills_up_after_the_run_loses_no_result(tmp_path):
    with disk_that_may_fill_up() as may_hold:

        def evaluate(program, state):
            may_hold(2000)
            return {"loss": 0.5}

        prepared = prepare(dataclasses.replace(small.line(), evaluate=evaluate))
        with pytest.raises(ResultNotWritten, match=r"the run ended well, but .*loss.png cannot be written") as error:
            run_of(prepared, RunOptions(steps=2)).run(RunFolder(tmp_path))
    assert (error.value.result.num_steps, error.value.result.held_out) == (2, {"loss": 0.5})
    assert sorted(os.listdir(tmp_path)) == ["config.json", "metrics.jsonl", "outlay.txt", "plan.json", "times.jsonl"]


@pytest.mark.compiles
def test_the_command_prints_the_result_that_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise RunFolderError("report.html cannot be written: No space left on device")

    monkeypatch.setattr(RunFolder, "write_report", full)
    done = command_here("run", LINE, "--steps", "2", "--json", cwd=tmp_path)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["num_steps"] == 2
    assert "the run ended well, but report.html cannot be written" in done.stderr


@pytest.mark.compiles
def test_after_an_exception_the_metrics_of_every_step_before_it_are_there(tmp_path):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_of(prepare(at_step(5, fail)), RunOptions(checkpoint_every=4)).run(RunFolder(tmp_path))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]
    with pytest.raises(ZeroDivisionError):  # nobody holds the folder any more
        run_of(prepare(at_step(7, fail)), RunOptions()).run(RunFolder(tmp_path, resume=True))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["", ".", "./", " "])
def test_the_current_folder_is_no_run_folder(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best_model.bin").write_text("thesis")
    before = contents(tmp_path)
    for options in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(RunFolderError, match="is the current folder, or comes from an empty variable"):
            RunFolder(Path(name), **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("options", [{}, {"force": True}, {"resume": True}])
def test_a_folder_of_others_is_refused_without_advice_to_force(tmp_path, options):
    for name in ("config.json", "checkpoints/best_model.bin", "metrics.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"mine": 1}')
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"is not a run folder of Outlay: .*checkpoints, config.json") as error:
        RunFolder(tmp_path, **options)
    assert "--force" not in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_device_in_the_place_of_a_file_is_not_read(earlier, name):
    (earlier / name).unlink()
    (earlier / name).symlink_to("/dev/zero")
    with pytest.raises(OutlayError, match=rf"{name} .*: it is a link|it leads to"):
        run_of(prepare(small.line()), RunOptions(steps=9)).run(RunFolder(earlier, resume=True))


@pytest.mark.compiles
def test_force_removes_what_is_listed_and_nothing_else(earlier):
    foreign = {
        "checkpoints/best_model.bin": "thesis",
        "notes.txt": "mine",
        "sample.txt": "mine",
        "checkpoints/7/x": "y",
    }
    for name, text in foreign.items():
        (earlier / name).parent.mkdir(exist_ok=True)
        (earlier / name).write_text(text)
    with pytest.raises(RunFolderError, match=r"Outlay did not write sample.txt, which a run would replace"):
        RunFolder(earlier, force=True)
    (earlier / "sample.txt").unlink()
    del foreign["sample.txt"]
    run_of(prepare(small.line()), RunOptions(steps=1)).run(RunFolder(earlier, force=True))
    assert {name: (earlier / name).read_text() for name in foreign} == foreign
    assert Checkpoints(earlier / "checkpoints").steps() == []
    assert len(lines(earlier)) == 1


def test_force_where_nothing_runs_replaces_nothing(earlier):
    before = of_the_run(earlier)
    with pytest.raises(ProgramError, match="compile-only"):
        run_of(prepare(small.line(), target="h100:1x8"), RunOptions()).run(RunFolder(earlier, force=True))
    assert of_the_run(earlier) == before


def test_force_while_somebody_saves_there_replaces_nothing(earlier):
    before = of_the_run(earlier)
    with Checkpoints(earlier / "checkpoints") as checkpoints:
        checkpoints._folder.own.take()
        with pytest.raises(CheckpointError, match="already in use"):
            run_of(prepare(small.line()), RunOptions(steps=1)).run(RunFolder(earlier, force=True))
    assert of_the_run(earlier) == before


def test_two_runs_in_one_folder_are_one_too_many(earlier):
    first = RunFolder(earlier, resume=True)
    for options in ({"resume": True}, {"force": True}):
        with pytest.raises(RunFolderError, match="already in use since"):
            RunFolder(earlier, **options)
    first.close()
    RunFolder(earlier, resume=True)


def test_a_restart_continues_what_was_begun_and_not_what_was_to_be_replaced(earlier):
    begun = []
    folder = RunFolder(
        earlier, force=True, on_begin=lambda: begun.append(json.loads((earlier / "config.json").read_text()))
    )
    assert begun == []
    folder.write_config({"num_steps": 7})
    assert begun == [{"num_steps": 7}]


def place(kind, path):
    """A run folder with something wrong."""
    if kind == "a parent that is a file":
        path.parent.joinpath("file").write_text("")
        return path.parent / "file" / "run"
    return {"/proc": Path("/proc/x"), "zero byte": path / "a\0b", "long": path / ("n" * 300)}[kind]


@pytest.mark.parametrize("kind", ["a parent that is a file", "/proc", "zero byte", "long"])
@pytest.mark.parametrize("resume", [False, True])
def test_impossible_run_folders_are_refused(tmp_path, kind, resume):
    with pytest.raises(RunFolderError, match="cannot be used: "):
        RunFolder(place(kind, tmp_path), resume=resume)


def test_a_folder_where_a_file_is_to_be(tmp_path):
    RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"Outlay did not write metrics.jsonl"):
        RunFolder(tmp_path)


VALUES = [None, True, -1, 0, 1.5, 10**30, "x", "", [], {}, [None], [1, 2], {"a": 1}]


def test_three_hundred_configs_that_were_changed_end_in_outlays_errors(earlier):
    path, dice = earlier / "config.json", random.Random(0)
    sound = path.read_text()
    for number in range(300):
        config = json.loads(sound)
        if number % 3:
            config[dice.choice(sorted(config))] = dice.choice(VALUES)
            path.write_text(json.dumps(config if number % 5 else dice.choice(VALUES)))
        else:
            at = dice.randrange(len(sound))
            path.write_text(sound[:at] + dice.choice(["", "[", "\0", "9", '"', "é"]) + sound[at + dice.randrange(3) :])
        with contextlib.suppress(OutlayError):
            folder = RunFolder(earlier, resume=True)
            try:
                assert isinstance(folder.earlier, dict)
            finally:
                folder.close()
    path.write_text("[1, 2]")
    with pytest.raises(
        RunFolderError, match=r"config.json is not the config of a run: it holds a list and not an object"
    ):
        RunFolder(earlier, resume=True)
