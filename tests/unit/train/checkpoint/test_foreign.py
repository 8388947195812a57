"""What Outlay did not write stays as it is, and stands in the way of nothing but its own name."""

import os
import shutil

import jax
import jax.numpy as jnp
import pytest
from tests.unit.train.checkpoint.arranged import BATCH, program, saved

from outlay.core.error_types import CheckpointError, CheckpointWarning
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import CheckpointFolder

STATE = {"w": jnp.ones(8)}


def put(path, text="precious"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tree(folder):
    """Every file that is not Outlay's mark, with its content; of checkpoints only that they are there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def save(checkpoints, *steps, state=STATE):
    for step in steps:
        checkpoints.save(step, state)
    checkpoints.wait()


@pytest.mark.parametrize("folder", ["", ".", "./", " "])
def test_the_current_folder_is_refused(folder):
    with pytest.raises(CheckpointError, match="is the current folder, or a variable that is empty"):
        Checkpoints(folder)


@pytest.mark.parametrize("files", [[f"{digit}/img.png" for digit in range(10)], ["4000/default/d/x", "note.partial"]])
def test_a_folder_of_others_is_refused_and_read(tmp_path, files):
    for name in files:
        put(tmp_path / name)
    before = tree(tmp_path)
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(CheckpointError, match=r"is not a checkpoint folder of Outlay: .*\n(?s:.)*fix: another folder"):
        checkpoints.save(4000, STATE)
    assert (checkpoints.steps(), checkpoints.exist()) == ([], False)
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        checkpoints.restore(program())
    assert tree(tmp_path) == before


def test_what_others_put_beside_checkpoints_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 10)
    foreign = [
        "1/img.png",
        "007/a",
        "note.partial",
        "mine.partial/data",
        "5.old.partial/x",
        "config.json",
        "40.partial/x",
    ]
    for name in foreign:
        put(tmp_path / name)
    save(checkpoints, 20, 30, 40)
    assert checkpoints.steps() == [40]
    assert {name: content for name, content in tree(tmp_path).items() if name in foreign} == dict.fromkeys(
        foreign, b"precious"
    )


def test_a_step_of_others_is_not_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    put(tmp_path / "20" / "default" / "x")
    (tmp_path / "30").write_text("precious")
    for step in (20, 30):
        with pytest.raises(CheckpointError, match=rf"{step} is there, and Outlay did not write it there; nothing"):
            checkpoints.save(step, STATE)
    save(checkpoints, 40)
    assert checkpoints.steps() == [10, 40]
    assert (tmp_path / "20" / "default" / "x").read_text() == (tmp_path / "30").read_text() == "precious"


@pytest.mark.compiles
def test_checkpoints_that_were_brought_here_are_restored_and_left(tmp_path):
    saved(tmp_path / "a", 10)
    checkpoints, state = saved(tmp_path / "b", 20, keep=1)
    shutil.copytree(tmp_path / "a" / "10", tmp_path / "b" / "10")
    save(checkpoints, 30, state=state)
    assert checkpoints.steps() == [10, 30]
    assert checkpoints.restore(program(), 10)[0] == 10


def test_files_of_others_in_an_old_checkpoint_keep_it_and_are_told_of_once(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 10)
    put(tmp_path / "10" / "notes.txt")
    with pytest.warns(CheckpointWarning, match=r"10 stays: it holds what Outlay did not write: notes.txt"):
        save(checkpoints, 20)
    save(checkpoints, 30)  # warnings are errors here
    assert (tmp_path / "10" / "notes.txt").read_text() == "precious"
    assert checkpoints.steps() == [30]


def test_a_link_to_an_old_checkpoint_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a", keep=1)
    save(checkpoints, 10)
    (tmp_path / "a" / "10").rename(tmp_path / "moved")
    (tmp_path / "a" / "10").symlink_to(tmp_path / "moved")
    save(checkpoints, 20, 30)
    assert checkpoints.steps() == [10, 30]
    assert Checkpoints(tmp_path / "a").exist()


def test_one_that_cannot_be_removed_is_a_warning_now_and_stops_nothing_later(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 10)
    real = shutil.rmtree

    def stuck(path, **options):
        if str(path).partition(f"{tmp_path}/")[2].startswith("10."):
            if not options.get("ignore_errors"):
                raise PermissionError(1, "Operation not permitted", "manifest.ocdbt")
        else:
            real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stuck)
    with pytest.warns(CheckpointWarning, match=r"new ones are saved all the same:\n.*10\..*Operation not permitted"):
        save(checkpoints, 20)
    save(checkpoints, 30)  # it was told already, and warnings are errors here
    assert checkpoints.steps() == [30]
    monkeypatch.undo()
    save(checkpoints, 40)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".partial")] == []


@pytest.mark.compiles
def test_a_renamed_one_is_not_taken_for_another_step(tmp_path):
    checkpoints, _ = saved(tmp_path, 10, 20)
    (tmp_path / "20").rename(tmp_path / "99")
    assert checkpoints.steps() == [10]
    with pytest.raises(CheckpointError, match="99 is the checkpoint of step 20, in a folder named 99"):
        checkpoints.restore(program(), 99)
    with pytest.warns(CheckpointWarning, match="in a folder named 99"):
        assert checkpoints.restore(program())[0] == 10
    save(checkpoints, 30, 40, 50, 60)
    assert (tmp_path / "99" / "checkpoint.json").is_file()


def donated():
    made = program()
    state = made.init(jax.random.key(0))
    made(state, BATCH)
    return state


def traced(checkpoints):
    jax.jit(lambda w: checkpoints.save(20, {"w": w}))(jnp.ones(8))


FAILING = {
    "used up": (lambda c: c.save(20, donated()), r"lea(f has|ves have) no memory any more(?s:.)*opt_state"),
    "empty": (lambda c: c.save(20, {}), "the state holds no array"),
    "None": (lambda c: c.save(20, None), "the state holds no array"),
    "traced": (traced, r"inside of jax.jit(?s:.)*save outside of it"),
    "-1": (lambda c: c.save(-1, STATE), "steps are counted from 0"),
    "a text": (lambda c: c.save("20", STATE), "it is not a whole number"),
}


@pytest.mark.compiles
@pytest.mark.parametrize("kind", FAILING)
def test_a_save_that_fails_leaves_nothing_and_the_next_succeeds(kind, tmp_path):
    fails, message = FAILING[kind]
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(CheckpointError, match=message):
        fails(checkpoints)
    assert sorted(os.listdir(tmp_path)) == before
    save(checkpoints, 20)
    assert checkpoints.steps() == [10, 20]


@pytest.mark.parametrize("where", ["start_writing", "finish_writing"])
def test_a_fault_while_it_is_written_is_told_at_once_and_not_to_the_next(where, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    files = checkpoints._array_files()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, where, full)
    if where == "start_writing":
        with pytest.raises(CheckpointError, match=r"step 20 could not be written to .*No space left"):
            checkpoints.save(20, STATE)
    else:
        checkpoints.save(20, STATE)
        checkpoints._saving.join()
        with pytest.raises(CheckpointError, match=r"step 20 could not be written to .*No space left"):
            checkpoints.raise_if_failed()
    monkeypatch.undo()
    checkpoints.raise_if_failed()
    save(checkpoints, 30)
    assert sorted(os.listdir(tmp_path)) == ["10", "30", "outlay.txt"]


def test_two_writers_in_one_folder_are_one_too_many(tmp_path):
    first, second = Checkpoints(tmp_path), Checkpoints(tmp_path)
    save(first, 10)
    with pytest.raises(CheckpointError, match="already in use since"):
        second.save(20, STATE)
    assert second.steps() == [10]  # reading takes no lock
    first.close()
    save(second, 20)
    with pytest.raises(CheckpointError, match="already in use"):
        first.save(30, STATE)
    with second:
        second.save(30, STATE)
    save(first, 40)
    assert first.steps() == [20, 30, 40]


def test_a_state_of_empty_arrays_alone_is_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, state={"e": jnp.zeros((0, 4))})
    assert checkpoints.steps() == [10]


@pytest.mark.compiles
def test_a_mark_that_is_gone_stops_saving_and_removes_nothing(tmp_path):
    checkpoints, state = saved(tmp_path, 10, 20)
    (tmp_path / "outlay.txt").unlink()
    before = sorted(os.listdir(tmp_path))
    for writer in (checkpoints, Checkpoints(tmp_path)):
        with pytest.raises(CheckpointError, match=r"outlay.txt"):
            writer.save(30, state)
    assert sorted(os.listdir(tmp_path)) == before
    assert CheckpointFolder(tmp_path).whole() == [10, 20]
    assert Checkpoints(tmp_path).restore(program())[0] == 20
