"""The commands inside this process, which has eight simulated devices."""

import json
import sys

import pytest
from tests.unit.cli.command import LINE
from typer.testing import CliRunner

from outlay.cli import output
from outlay.cli.main import app, formatted_warning


def outlay(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_show_prints_where_everything_lives():
    shown = outlay("show", LINE, "--layout", "zero1", "--mesh", "data=-1")
    assert shown.exit_code == 0, shown.output
    assert "opt_state.0.mu.w" in shown.stdout
    assert "mesh data=8" in shown.stdout


def test_show_as_json_is_one_document():
    shown = outlay("show", LINE, "--json", "--devices", "8")
    assert "params.w" in {leaf["path"] for leaf in json.loads(shown.stdout)["leaves"]}


def test_show_writes_a_page(tmp_path):
    shown = outlay("show", LINE, "--html", str(tmp_path / "page.html"))
    assert "params.w" in (tmp_path / "page.html").read_text()
    assert "page.html: open it in a browser" in shown.stderr
    assert "page.html" not in shown.stdout


def test_a_page_that_cannot_be_written(tmp_path):
    shown = outlay("show", LINE, "--html", str(tmp_path / "nowhere" / "page.html"))
    assert shown.exit_code == 2
    assert "there is no folder" in shown.stderr


@pytest.mark.compiles
def test_run_as_json_is_one_document(tmp_path):
    finished = outlay("run", LINE, "--steps", "2", "--run-folder", str(tmp_path / "run"), "--json")
    assert finished.exit_code == 0, finished.output
    assert json.loads(finished.stdout)["num_steps"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "digit"], "error: there is no recipe 'digit': did you mean 'digits'?"),
        (["show", LINE, "--layout", "fsd"], "error: the recipe 'line' has no layout 'fsd'"),
        (["show", LINE, "--layout", "none.toml"], "none.toml"),
        (["show", LINE, "--mesh", "data:4"], "error: 'data:4' has no size"),
        (["show", LINE, "--mesh", "data=3"], "error: "),
        (["show", LINE, "--devices", "3"], "error: outlay.simulate(3) comes too late"),
        (["show", LINE, "--devices", "0"], "Input should be greater than or equal to 1"),
        (["run", LINE, "--steps", "0"], "Input should be greater than or equal to 1"),
        (["show"], "Missing argument 'RECIPE'"),
        (["shwo", LINE], "No such command 'shwo'"),
        (["train", "digits", "--steps", "3"], "error: there is no command 'train'\n  fix: outlay run digits --steps 3"),
        (["digits"], "fix: outlay run digits"),
        (["train.py:recipe", "--devices", "8"], "fix: outlay run train.py:recipe --devices 8"),
        (["plan", "digits"], "fix: outlay show digits"),
        (["check"], "fix: outlay verify RECIPE"),
        (["version"], "fix: outlay --version"),
        (["help"], "fix: outlay --help"),
        (["recipes"], "outlay run RECIPE, one of digits, lm"),
        (["run", LINE, "--gpus", "8"], "there is no option --gpus: write --devices N"),
        (["run", LINE, "--epochs", "5"], "there is no option --epochs: write --steps N"),
        (["run", LINE, "--wandb"], "there is no option --wandb: write --log wandb"),
        (["explain", LINE, "--fsdp"], "there is no option --fsdp: write --layout fsdp"),
        (["run", LINE, "--log", "tb"], "error: nothing is logged to tb\n  fix: one of tensorboard, wandb, mlflow"),
        (["run", LINE, "--mesh", "data=4 model=2"], "write data=4,model=2"),
        (["diff", "fsdp", "dp"], "outlay diff A B --recipe RECIPE"),
    ],
)
def test_a_mistake_ends_with_a_message_and_exit_code_2(arguments, message):
    failed = outlay(*arguments)
    assert failed.exit_code == 2, failed.output
    assert message in failed.stderr
    assert failed.stdout == ""


def test_a_missing_extra_is_named_with_its_fix(monkeypatch):
    for module in ("outlay.recipes.digits", "outlay.models.classifiers"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "flax", None)
    failed = outlay("show", "digits")
    assert failed.exit_code == 2
    assert failed.stderr == "error: this needs flax, which is not installed\n  fix: pip install 'outlay[train]'\n"


@pytest.mark.processes
def test_doctor_knows_what_is_here(monkeypatch):
    monkeypatch.setenv("JAX_LOG_COMPILES", "0")
    report = json.loads(outlay("doctor", "--json").stdout)
    assert report["platform"] == "cpu"
    assert len(report["devices"]) == 8
    assert report["versions"]["jax"]
    assert report["optional"]["flax"]
    assert ["JAX_LOG_COMPILES", "0", "a JAX setting, read when jax is imported"] in report["environment"]
    assert "started by" in report["started_by"]


@pytest.mark.processes
def test_doctor_in_words():
    text = outlay("doctor").stdout
    assert "devices     8: 0 cpu, 1 cpu" in text
    assert "no known problems" in text


def test_a_warning_of_outlays_is_its_text_alone():
    assert (
        formatted_warning("one runs in plain JAX", UserWarning, output.__file__, 3)
        == "warning: one runs in plain JAX\n"
    )
    assert formatted_warning("too old", UserWarning, "not_there.py", 3) == "not_there.py:3: UserWarning: too old\n"
    assert "DeprecationWarning" in formatted_warning("soon gone", DeprecationWarning, output.__file__, 3)
