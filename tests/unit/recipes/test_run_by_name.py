"""`outlay.run` does in Python what `outlay run` does."""

import pytest
from tests.unit.cli.command import LINE

import outlay
from outlay.errors import RecipeError, RunFolderError


def test_it_leaves_a_run_folder_and_goes_on_in_it(tmp_path):
    result = outlay.run(LINE, layout="fsdp", steps=4, run_folder=tmp_path / "run", checkpoint_every=2)
    assert result.to_dict()["num_steps"] == 4
    assert (tmp_path / "run" / "report.html").exists()
    result = outlay.run(LINE, layout="dp", steps=6, run_folder=tmp_path / "run", resume=True)
    assert result.to_dict()["resumed_after"] == 4


def test_without_a_folder_it_is_called_after_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outlay.run(LINE, steps=1)
    (folder,) = (tmp_path / "runs").iterdir()
    with pytest.raises(RunFolderError, match="force"):
        outlay.run(LINE, steps=1)
    outlay.run(LINE, steps=1, force=True)
    assert (folder / "plan.json").exists()


def test_a_run_that_is_to_be_replaced_cannot_go_on(tmp_path):
    with pytest.raises(RecipeError, match="would continue is replaced"):
        outlay.run(LINE, steps=1, run_folder=tmp_path, force=True, resume=True)
