"""Published runs on TPUs are built as their recipes have them."""

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def built(monkeypatch):
    """A function that builds a row by its name."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    rows = importlib.import_module("_published_rows")
    by_name = {row["id"]: row for row in rows.read_rows(rows.RUNS)}
    return lambda name: rows.run_of(by_name[name])


def test_products_wait_for_whole_gathers_where_the_recipe_says_so(built):
    assert built("maxtext-v6e-llama3.1-8b-8").flags == {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
    assert built("maxtext-v6e-llama3.1-8b-64").flags == {}


def test_experts_have_the_room_that_the_source_says(built):
    assert built("maxtext-v6e-mixtral-8x7b-256").options["--capacity-factor"] == "1.25"
    assert built("mbridge-26.06-qwen3_30b_a3b-16xh100-fp8").options["--capacity-factor"] == "1"


def test_logits_are_computed_in_as_many_pieces_as_the_source_says(built):
    assert built("maxtext-v5p-llama3.1-405b-512").options["--loss-chunks"] == "4"
    assert "--loss-chunks" not in built("maxtext-v6e-llama3.1-405b-2x256").options
