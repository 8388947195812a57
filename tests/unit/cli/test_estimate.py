"""`outlay estimate` as a user meets it."""

import json

import pytest
from tests.unit.cli.command import LINE, ROOT, command_here
from typer.testing import CliRunner

from outlay.cli.main import app


def test_the_time_of_a_step_is_a_range_with_what_it_assumes(tmp_path):
    done = command_here("estimate", LINE, "--target", "cpu:8", "--layout", "fsdp", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert " a step (" in done.stdout.splitlines()[0]
    assert "assumptions" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_as_json_it_is_one_document_whose_parts_add_up(tmp_path):
    done = command_here("estimate", LINE, "--target", "cpu:8", "--layout", "fsdp", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["seconds_low"] < facts["seconds"] < facts["seconds_high"]
    assert sum(facts["parts"].values()) == pytest.approx(facts["seconds"])


def test_what_does_not_fit_says_what_should_also_as_json(tmp_path, monkeypatch):
    (tmp_path / "targets.toml").write_text("[cpu]\nmemory_bytes = 72000\n")
    monkeypatch.setenv("OUTLAY_TARGETS", "targets.toml")
    recipe = f"{ROOT}/tests/unit/recipes/varied.py:varied"
    asked = ("estimate", recipe, "--target", "cpu:8", "--layout", "dp", "--json")
    done = command_here(*asked, cwd=tmp_path)
    (way,) = json.loads(done.stdout)["ways_to_fit"]
    assert (way["layout"], way["mesh"], way["options"]) == ("fsdp", "data=8", {})
    assert way["num_bytes"] <= 72000
    assert way["command"] == f"outlay explain {recipe} --target cpu:8 --layout fsdp --mesh data=8"


def test_a_working_folder_that_has_been_removed_does_not_matter(tmp_path, monkeypatch):
    removed = tmp_path / "gone"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    done = CliRunner().invoke(app, ["estimate", LINE, "--target", "cpu:8", "--layout", "dp"])
    assert done.exit_code == 0, done.output
