import dataclasses
import json

import pytest
from tests.unit.recipes import small

from outlay.core.error_types import ProgramError
from outlay.layout.plan import Plan
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.patience import Patience
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.run_record import RunRecord


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    prepared = prepare(small.line(), layout="fsdp")
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    return prepared, folder.path, run_of(prepared, RunOptions()).run(folder)


def test_the_run_folder_tells_what_was_run(finished):
    prepared, path, _ = finished
    config = json.loads((path / "config.json").read_text())
    assert (config["recipe"], config["layout"], config["num_steps"], config["seed"]) == ("line", "fsdp", 12, 0)
    assert config["mesh"]["axes"] == {"data": 8}
    assert len(config["rules"]) == len(prepared.program.layout)
    assert Plan.from_json((path / "plan.json").read_text()) == prepared.program.plan
    steps = [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))


def test_the_run_folder_tells_where_the_time_went_and_how_it_was_run(finished):
    _, path, _ = finished
    record = RunRecord(path)
    assert (record.state, record.step, record.num_steps) == ("finished", 12, 12)
    assert all(record.seconds[phase] > 0 for phase in ("steps", "input", "evaluate", "compile", "other"))
    assert 0 < record.goodput < 1
    assert record.memory[-1][1] > 2**20
    assert record.config["command"]
    assert {"loss", "off"} <= set(record.curves.points)
    page = (path / "report.html").read_text()
    for words in ("Where the time went", "Versions", "Command", "goodput"):
        assert words in page


def test_the_report_is_one_file_that_holds_everything(finished):
    _, path, result = finished
    page = (path / "report.html").read_text()
    assert 'data-chart="loss"' in page
    assert result.facts["held out"] in page
    assert "params.w" in page
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_the_result_is_of_unseen_data_and_says_that_the_devices_were_simulated(finished):
    _, path, result = finished
    assert set(result.held_out) == {"loss", "off"}
    assert result.simulated
    assert "simulated devices: this is not a speed" in str(result)
    assert f"{path}/report.html" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["num_samples"] == 12 * 16


@pytest.mark.compiles
def test_fewer_steps_can_be_asked_for(tmp_path):
    result = run_of(prepare(small.line()), RunOptions(steps=2)).run(RunFolder(tmp_path))
    assert result.num_steps == 2
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.compiles
def test_a_recipes_sample_is_shown_and_kept(tmp_path):
    def sample(program, state):
        return f"after {int(state.step)} steps on {program.mesh.size} devices <b>"

    result = run_of(prepare(dataclasses.replace(small.line(), sample=sample)), RunOptions(steps=2)).run(
        RunFolder(tmp_path)
    )
    assert "\n\nafter 2 steps on 8 devices <b>\n\nrun folder" in str(result)
    assert (tmp_path / "sample.txt").read_text() == result.sample == "after 2 steps on 8 devices <b>"
    assert "<pre>after 2 steps on 8 devices &lt;b&gt;</pre>" in (tmp_path / "report.html").read_text()


def test_a_recipe_without_a_sample_leaves_no_file(finished):
    _, path, result = finished
    assert result.sample == ""
    assert not (path / "sample.txt").exists()
    assert "<pre>" not in (path / "report.html").read_text().partition("<iframe")[0]


@pytest.mark.compiles
def test_a_run_is_evaluated_on_its_way_and_ended_by_patience_also_where_it_is_continued(tmp_path):
    losses = iter([3.0, 2.0, 2.5, 2.4, 9.0])
    recipe = dataclasses.replace(small.line(), evaluate=lambda program, state: {"loss": next(losses)})
    training = {"evaluate_every": 2, "patience": Patience(2), "steps_per_call": 2}
    result = run_of(prepare(recipe), RunOptions(steps=6, checkpoint_every=6, **training)).run(RunFolder(tmp_path))
    assert (result.num_steps, result.held_out) == (6, {"loss": 2.5})
    assert "evaluate.loss" not in result.training
    # Continued without options it is evaluated, ended and taken as before.
    result = run_of(prepare(recipe), RunOptions(steps=12)).run(RunFolder(tmp_path, resume=True))
    assert (result.num_steps, result.held_out, next(losses)) == (8, {"loss": 2.4}, 9.0)
    assert "after 8 steps of 12, which patience ended, continued after step 6" in str(result)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["evaluate_every"], config["patience"]["evaluations"], config["steps_per_call"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"patience": Patience(2)},
            r"evaluated only after its last step\n  fix: evaluate_every=100 \(--evaluate-every",
        ),
        ({"evaluate_every": 2}, r"evaluate_every=2, but no evaluation function\n  fix: pass evaluate=lambda"),
    ],
)
def test_options_that_a_recipe_has_no_use_for_leave_the_folder_as_it_is(tmp_path, options, says):
    (tmp_path / "run").mkdir()
    recipe = dataclasses.replace(small.line(), evaluate=None)
    with pytest.raises(ProgramError, match=says):
        run_of(prepare(recipe), RunOptions(**options)).run(RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / "config.json").exists()
