"""`outlay.run(processes=)`: what `outlay run --processes` does, from Python."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests import forks
from tests.unit.cli.command import LINE, ROOT

import outlay
from outlay.errors import LaunchError


@pytest.fixture(autouse=True)
def own_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}/src{os.pathsep}{ROOT}")
    monkeypatch.setattr(sys, "executable", forks.python())


def test_processes_run_a_recipe_and_its_result_comes_back(tmp_path, capfd):
    result = outlay.run(
        LINE, devices=2, processes=2, layout="fsdp", steps=2, record="params.*", run_folder=tmp_path / "run"
    )
    assert (result.num_steps, result.num_rows) == (2, 2)
    assert "in 2 processes" in result.devices
    assert result.to_dict()["training"]["loss"] == json.loads(lines_of(tmp_path / "run")[-1])["loss"]
    assert "held out" in capfd.readouterr().out
    with pytest.raises(LaunchError, match="ended with exit code 2: see above why"):
        outlay.run(LINE, devices=2, processes=2, steps=1, run_folder=tmp_path / "run")
    assert f"the run folder {tmp_path / 'run'} exists" in capfd.readouterr().err


def lines_of(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()
