import pytest

from outlay.core.error_types import RunFolderError
from outlay.train.run_folder import RunFolder


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.write_config({"seed": 3})
    assert (tmp_path / "runs" / "first" / "config.json").read_text() == '{\n "seed": 3\n}\n'


def test_an_empty_folder_can_be_used(tmp_path):
    assert RunFolder(tmp_path).path == tmp_path


def test_a_run_that_is_there_is_not_touched(tmp_path):
    path = tmp_path / "run"
    RunFolder(path).write_config({})
    (path / "notes.txt").write_text("mine")
    (tmp_path / "run-2").mkdir()
    message = r"run exists and holds 2 files: config.json, notes.txt\n  fix: --run-folder .*run-3 .* --force"
    with pytest.raises(RunFolderError, match=message):
        RunFolder(path)
    assert sorted(entry.name for entry in path.iterdir()) == ["config.json", "notes.txt", "outlay.txt"]


def test_force_replaces_the_run_and_leaves_the_users_files(tmp_path):
    RunFolder(tmp_path).write_report("old")
    (tmp_path / "notes.txt").write_text("mine")
    folder = RunFolder(tmp_path, force=True)
    folder.write_config({})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "notes.txt", "outlay.txt"]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_no_folder(tmp_path, force):
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunFolderError, match="run is a file, not a folder"):
        RunFolder(tmp_path / "run", force=force)


def test_the_loss_becomes_a_picture(tmp_path):
    history = [{"step": step, "loss": 1 / step} for step in range(1, 101)]
    picture = RunFolder(tmp_path).write_loss(history)
    assert picture.read_bytes().startswith(b"\x89PNG")


def begun(path, metrics=""):
    folder = RunFolder(path)
    folder.write_config({"num_steps": 3})
    folder.will_write("recording.zarr")
    (path / "recording.zarr").mkdir()
    (path / "recording.zarr" / "zarr.json").write_text("{}")
    if metrics:
        (path / "metrics.jsonl").write_text(metrics)
    folder.close()


def test_a_run_that_ended_before_its_first_step_is_not_in_the_way(tmp_path):
    begun(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.write_config({"num_steps": 5})
    folder.close()
    assert '"num_steps": 5' in (tmp_path / "run" / "config.json").read_text()


def test_a_run_with_one_step_or_anything_of_the_users_own_is_in_the_way(tmp_path):
    begun(tmp_path / "one_step", '{"step": 1}\n')
    begun(tmp_path / "own")
    (tmp_path / "own" / "notes.txt").touch()
    begun(tmp_path / "recorded")
    (tmp_path / "recorded" / "recording.zarr" / "steps").mkdir()
    for name in ("one_step", "own", "recorded"):
        with pytest.raises(RunFolderError, match="--force to replace the run in it"):
            RunFolder(tmp_path / name)
