"""`outlay.run` does in Python what `outlay run` does."""

import pytest
from tests.unit.cli.command import LINE
from tests.unit.recipes.small import line

import outlay
from outlay.errors import OutlayError, RecipeError, RunFolderError

pytestmark = pytest.mark.usefixtures("blank_pictures")


def test_a_run_by_name_leaves_a_run_folder_and_resumes_in_it(tmp_path):
    result = outlay.run(LINE, layout="fsdp", steps=4, run_folder=tmp_path / "run", checkpoint_every=2)
    assert result.to_dict()["num_steps"] == 4
    assert (tmp_path / "run" / "report.html").exists()
    result = outlay.run(LINE, layout="dp", steps=6, run_folder=tmp_path / "run", resume=True)
    assert result.to_dict()["resumed_after"] == 4


@pytest.mark.thorough
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


def a_recipe() -> outlay.Recipe:
    return line()


def test_what_makes_a_recipe_is_given_its_options(tmp_path):
    result = outlay.run(a_recipe, devices=8, steps=1, run_folder=tmp_path / "run")
    assert result.to_dict()["num_steps"] == 1
    with pytest.raises(RecipeError, match="takes no options"):
        outlay.run(line(), options={"model": "tiny"})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_restarts": 1, "in_order": True}, r"max_restarts, in_order: only with processes=\n  fix: processes=P"),
        (
            {"processes": 2, "mesh": outlay.mesh(data=8), "patience": outlay.train.Patience(2)},
            r"objects: mesh, patience",
        ),
    ],
)
def test_arguments_that_processes_cannot_take_are_refused(asked, message):
    with pytest.raises(OutlayError, match=message):
        outlay.run(LINE, **asked)


def test_processes_are_not_given_a_recipe_of_this_process():
    with pytest.raises(RecipeError, match=r"cannot be given the recipe 'line'.*\n  fix: its name"):
        outlay.run(line(), processes=2)


def test_the_processes_of_a_run_start_no_job_of_their_own(monkeypatch):
    monkeypatch.setenv("OUTLAY_NUM_PROCESSES", "2")
    with pytest.raises(RecipeError, match=r'fix: call it under `if __name__ == "__main__":`'):
        outlay.run(LINE, processes=2)
