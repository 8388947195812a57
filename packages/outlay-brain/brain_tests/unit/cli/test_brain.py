import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlay.brain.run
from outlay.brain.files.read_brain import read_brain
from outlay.cli.main import app

AB_BRAIN = Path(outlay.brain.run.__path__[0]) / "ab_brain.toml"
NEWEST = Path(__file__).parents[2] / "data" / "spark_1_2.scfg"


@pytest.fixture
def run():
    """Run a command: exit code, stdout, stderr."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["brain", *map(str, arguments)])
        return result.exit_code, result.stdout, result.stderr

    return run_command


@pytest.mark.compiles
def test_show_prints_the_tree_and_draws_the_picture(run, tmp_path):
    code, out, _ = run("show", AB_BRAIN, "--picture", tmp_path / "ab.png")
    assert code == 0
    assert "kernel (256, 832) float32" in out
    assert (tmp_path / "ab.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = run("show", AB_BRAIN, "--json")
    assert json.loads(out)["modules"]["A_ex"]["settings"]["soma.resistance"] == "0.8 GOhm/ms"


def test_convert_writes_what_reads_back_and_replaces_nothing_unasked(run, tmp_path):
    target = tmp_path / "model.toml"
    assert run("convert", NEWEST, target, "--input", "drive=4")[0] == 0
    assert read_brain(target) == read_brain(NEWEST, inputs={"drive": (4,)})
    target.write_text("mine")
    code, _, err = run("convert", AB_BRAIN, target)
    assert (code, target.read_text()) == (2, "mine")
    assert "Outlay did not make it; nothing was written" in err
    assert run("convert", AB_BRAIN, target, "--force")[0] == 0
    assert read_brain(target) == read_brain(AB_BRAIN)


def test_what_cannot_be_converted_is_listed_and_nothing_is_written(run, tmp_path):
    code, _, err = run("convert", AB_BRAIN, tmp_path / "model.nir")
    assert code == 2
    assert "NIR has no TopologicalLinearSpiker" in err
    assert "its soma is AdaptiveLeakySoma" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", NEWEST], "--shape drive=4"),
        (["show", NEWEST, "--shape", "drive"], "'drive' is not a shape"),
        (["show", NEWEST, "--input", "drive=0"], "'drive=0' is not a shape"),
        (["show", "missing.toml"], "No such file"),
        (["convert", AB_BRAIN, "model.png"], "a name that ends in .toml or .nir"),
    ],
)
def test_impossible_conversions_are_refused(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
