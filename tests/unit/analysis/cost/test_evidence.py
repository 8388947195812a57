"""Published runs beside a price: the table in the package, and which runs are nearest to a step."""

import importlib
import sys
from pathlib import Path

import pytest

from outlay.analysis.attribution.program_facts import WorkFacts
from outlay.analysis.cost.evidence import nearest_runs, published_runs
from outlay.devices.target import Target
from outlay.report.explain.explain_evidence import evidence_line

SCRIPTS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    """A function that imports a module of the benchmarks."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module
    sys.path.remove(str(SCRIPTS))


def hardware(target):
    return Target.parse(target).hardware


def test_a_run_on_the_same_chip_comes_before_all_others_and_then_the_same_layout():
    first, *_ = nearest_runs(hardware("h100:4x8"), 32, 4e14, {"parameters"})
    assert (first.target, first.layout) == ("h100:4x8", "fsdp")
    a100 = hardware("a100-80gb:1x8")
    same = [hardware(run.target).name == a100.name for run in nearest_runs(a100, 8, 1e14, {"parameters"}, most=100)]
    assert same == sorted(same, reverse=True)
    assert 10 < sum(same) < len(same)
    with_layers = [run.layout for run in nearest_runs(hardware("h100:1x8"), 8, 1e14, {"layers"}, most=40)]
    assert "zero1+tp+sp" in with_layers[:10]


def test_runs_are_named_once_and_none_is_like_a_simulated_cpu():
    runs = nearest_runs(hardware("h100:1x8"), 8, 1e15, {"parameters"}, most=50)
    assert len({(run.model, run.target, run.layout, run.is_fp8) for run in runs}) == len(runs)
    assert not nearest_runs(hardware("cpu:8"), 8, 1e15)


def test_hardware_without_a_published_run_gets_those_of_its_kind():
    assert all(run.target.startswith("tpu") for run in nearest_runs(hardware("tpu-ironwood:2x2x1"), 8, 1e14))


def test_the_table_says_what_sources_print_and_what_is_predicted_today(scripts):
    """Of some runs: all of them are priced where the table is made, in half a minute."""
    facts, rows = scripts("_published_facts"), scripts("_published_rows")
    known, price = facts.known_facts(), scripts("_published_price").price_of
    table = {(run.target, run.published, f"{run.predicted:.4g}") for run in published_runs()}
    timed = [row for row in rows.read_rows(rows.RUNS) if row["id"] in known and row["quality"] in "AB"]
    runs = [
        run for row in timed[::12] if (run := facts.known_run(known, row)).is_timed and "error" not in known[run.id]
    ]
    assert len(runs) > 8
    for run in runs:
        now = f"{price(run, known[run.id]).seconds:.4g}"
        assert (run.target, float(f"{run.seconds:.4g}"), now) in table, run.id


def test_few_runs_lie_outside_the_range_that_they_are_shown_with():
    inside = [run.low <= run.published <= run.high for run in published_runs()]
    assert sum(inside) > 0.8 * len(inside)
    assert all(run.source and run.date for run in published_runs())


def test_a_step_in_fp8_is_shown_beside_runs_in_fp8():
    """Of the same model on the same chip; beside a step in 16 bits stand those in 16 bits."""
    first, *_ = nearest_runs(hardware("h100:1x8"), 8, 1e15, {"parameters"}, in_fp8=True)
    assert (first.is_fp8, first.target) == (True, "h100:1x8")
    others = nearest_runs(hardware("h100:1x8"), 8, 1e15, {"parameters"}, most=4)
    assert not any(run.is_fp8 for run in others)


@pytest.mark.parametrize(("dtype", "is_said"), [("float8", True), ("bfloat16", False)])
def test_a_step_in_fp8_says_that_no_such_run_is_among_them(dtype, is_said):
    runs = [run for run in published_runs() if not run.is_fp8][:2]
    (line,) = evidence_line(runs, WorkFacts(None, runs[0].flops, 0.0, {dtype: runs[0].flops}))
    assert ("none of these multiplied in FP8" in line.text) == is_said
