"""What is removed of the arrays of a run: those that it lists, and nothing beside them, under whatever name."""

import os

import numpy as np
import pytest

from outlay.core.error_types import OutputError, RunFolderError
from outlay.train.recording import Recording, ZarrRecorder
from outlay.train.run_arrays import remove_collected, remove_recording
from outlay.train.run_folder import COLLECTED, RECORDING, RunFolder

TYPES = {"params.w": ((2,), np.dtype("float32"))}
MINE = ("77.npz", "my_analysis/zarr.json", "my_analysis/c/0", "params.w/notes.txt", "params.w/c/7.old", "notes.txt")


def record(path, **options):
    recorder = ZarrRecorder(path, TYPES, 1.0, **options)
    recorder.append(np.arange(2), {"params.w": np.ones((2, 2), np.float32)})


def put(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


def files_in(folder):
    return sorted(
        os.path.relpath(os.path.join(path, name), folder) for path, _, files in os.walk(folder) for name in files
    )


def test_a_recording_goes_whole(tmp_path):
    record(tmp_path / "r")
    remove_recording(tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_what_others_put_beside_its_arrays_stays_and_a_new_one_is_made_there(tmp_path):
    folder = tmp_path / "r"
    record(folder)
    put(folder, MINE)
    remove_recording(folder)
    assert files_in(folder) == sorted(MINE)
    with pytest.raises(OutputError, match="r exists, and a recording would replace it"):
        record(folder)
    record(folder, beside=True)
    assert Recording.read(folder)["params.w"].shape == (2, 2)
    with pytest.raises(OutputError, match=r"r/zarr.json exists, and a recording would replace it"):
        record(folder, beside=True)


def test_no_link_is_entered(tmp_path):
    record(tmp_path / "mine")
    record(tmp_path / "r")
    for name in ("params.w/c", "steps"):
        os.rename(tmp_path / "r" / name, tmp_path / name.replace("/", "-"))
        (tmp_path / "r" / name).symlink_to(tmp_path / "mine" / name)
    remove_recording(tmp_path / "r")
    assert Recording.read(tmp_path / "mine")["params.w"].tolist() == [[1, 1], [1, 1]]


def test_a_folder_that_lists_nothing_keeps_everything(tmp_path):
    put(tmp_path, ["zarr.json", "a/zarr.json", "1.npz"])
    remove_recording(tmp_path)
    assert files_in(tmp_path) == ["1.npz", "a/zarr.json", "zarr.json"]


def test_of_what_was_collected_the_checkpoints_steps_go(tmp_path):
    put(tmp_path / "c", ["10.npz", "20.npz", "77.npz"])
    remove_collected(tmp_path / "c", [10, 20, 30])
    assert files_in(tmp_path / "c") == ["77.npz"]


def begun(path, *names):
    folder = RunFolder(path)
    folder.write_config({"num_steps": 4})
    for name in names:
        folder.will_write(name)
    return folder


NAMES = ("plan.json", "report.html", "config.json", "metrics.jsonl", "checkpoints", "collected", "rates.npz")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_not_continued_through_a_link(name, tmp_path):
    begun(tmp_path / "run", *NAMES, RECORDING).close()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
    message = (
        rf"1 link in the place of what a run writes.*nothing was touched\n  link: .*{name}\n    it leads to '.*mine'"
    )
    with pytest.raises(RunFolderError, match=message):
        RunFolder(tmp_path / "run", resume=True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_nor_through_one_in_its_recording(tmp_path):
    folder = begun(tmp_path / "run")
    record(folder.will_write(RECORDING))
    folder.close()
    os.rename(tmp_path / "run" / RECORDING / "params.w", tmp_path / "mine")
    (tmp_path / "run" / RECORDING / "params.w").symlink_to(tmp_path / "mine")
    with pytest.raises(RunFolderError, match=r"link: .*recording.zarr/params.w"):
        RunFolder(tmp_path / "run", resume=True)


def test_a_new_run_replaces_links_of_files_and_enters_no_folder_by_one(tmp_path):
    begun(tmp_path / "run", "plan.json", RECORDING).close()
    record(tmp_path / "mine")
    (tmp_path / "text").write_text("mine")
    (tmp_path / "run/plan.json").symlink_to(tmp_path / "text")
    (tmp_path / "run" / RECORDING).symlink_to(tmp_path / "mine")
    folder = RunFolder(tmp_path / "run", force=True)
    folder.write_config({})
    assert folder.write("plan.json", "new").read_text() == "new"
    folder.close()
    assert (tmp_path / "text").read_text() == "mine"
    assert len(Recording.read(tmp_path / "mine").steps) == 2
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "mine")
    with pytest.raises(RunFolderError, match=r"link: .*checkpoints\n"):
        RunFolder(tmp_path / "run", force=True)


def test_what_is_in_the_way_is_listed_before_anything_goes(tmp_path):
    folder = begun(tmp_path, "loss.png", RECORDING)
    put(tmp_path, ["rates.npz", "loss.png/mine", "collected/1", f"{RECORDING}/zarr.json"])
    before = files_in(tmp_path)
    message = (
        r"(?s)4 entries in the way.*nothing was touched.*loss.png is in the way: it is a folder.*rates.npz is "
        r"in the way: Outlay did not.*collected is in.*recording.zarr/zarr.json is in the way: it does not say"
    )
    with pytest.raises(RunFolderError, match=message):
        folder.check_room(["rates.npz"], {RECORDING: True, COLLECTED: True})
    assert files_in(tmp_path) == before
