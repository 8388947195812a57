import dataclasses
import json

import pytest
from tests.unit.recipes import small

from outlay.layout.plan import Plan
from outlay.recipes.prepare import prepare
from outlay.recipes.run import run_prepared
from outlay.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    prepared = prepare(small.line(), layout="fsdp")
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    return prepared, folder.path, run_prepared(prepared, folder)


def test_the_run_folder_tells_what_was_run(finished):
    prepared, path, _ = finished
    config = json.loads((path / "config.json").read_text())
    assert (config["recipe"], config["layout"], config["num_steps"], config["seed"]) == ("line", "fsdp", 12, 0)
    assert config["mesh"]["axes"] == {"data": 8}
    assert len(config["rules"]) == len(prepared.program.layout)
    assert Plan.from_json((path / "plan.json").read_text()) == prepared.program.plan
    steps = [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))


def test_the_report_is_one_file_that_holds_everything(finished):
    _, path, result = finished
    page = (path / "report.html").read_text()
    assert "data:image/png;base64," in page
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
    result = run_prepared(prepare(small.line()), RunFolder(tmp_path), steps=2)
    assert result.num_steps == 2
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.compiles
def test_a_recipes_sample_is_shown_and_kept(tmp_path):
    def sample(program, state):
        return f"after {int(state.step)} steps on {program.mesh.size} devices <b>"

    result = run_prepared(prepare(dataclasses.replace(small.line(), sample=sample)), RunFolder(tmp_path), steps=2)
    assert "\n\nafter 2 steps on 8 devices <b>\n\nrun folder" in str(result)
    assert (tmp_path / "sample.txt").read_text() == result.sample == "after 2 steps on 8 devices <b>"
    assert "<pre>after 2 steps on 8 devices &lt;b&gt;</pre>" in (tmp_path / "report.html").read_text()


def test_a_recipe_without_a_sample_leaves_no_file(finished):
    _, path, result = finished
    assert result.sample == ""
    assert not (path / "sample.txt").exists()
    assert "<pre>" not in (path / "report.html").read_text().partition("<iframe")[0]
