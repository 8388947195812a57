"""`outlay estimate` as a user meets it."""

import json

import pytest
from tests.unit.cli.command import LINE, command_here


def test_the_time_of_a_step_is_a_range_with_what_it_assumes(tmp_path):
    found = command_here("estimate", LINE, "--target", "cpu:8", "--layout", "fsdp", cwd=tmp_path)
    assert found.exit_code == 0, found.output
    assert " a step (" in found.stdout.splitlines()[0]
    assert "assumed" in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_as_json_it_is_one_document_whose_parts_add_up(tmp_path):
    found = command_here("estimate", LINE, "--target", "cpu:8", "--layout", "fsdp", "--json", cwd=tmp_path)
    facts = json.loads(found.stdout)
    assert facts["seconds_low"] < facts["seconds"] < facts["seconds_high"]
    assert sum(facts["parts"].values()) == pytest.approx(facts["seconds"])
