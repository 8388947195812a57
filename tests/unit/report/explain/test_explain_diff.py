import json
from types import MappingProxyType

import pytest
from tests.unit.program.test_storing import program_of

import outlay
from outlay.errors import ExplainError
from outlay.report.explain.explain_diff import diff_reports, read_report


@pytest.fixture(scope="module")
def reports():
    as_dicts = [outlay.explain(program_of(*rules)).to_dict() for rules in ([], [("layer_input", outlay.layout.keep())])]
    return MappingProxyType(dict(zip(("plain", "kept"), as_dicts, strict=True)))


def test_a_report_and_what_was_saved_of_it_are_the_same(reports, tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps({**reports["plain"], "compile_seconds": 99.0}))
    same = diff_reports(reports["plain"], read_report(file))
    assert not same
    assert str(same) == "the same: memory, time, and every line that moves something"


def test_memory_time_and_lines_that_differ_are_told_with_both_figures(reports):
    diff = diff_reports(reports["plain"], reports["kept"])
    assert diff
    totals = {one.what: (one.before, one.after) for one in diff.totals}
    peaks = (reports["plain"]["memory"]["peak"], reports["kept"]["memory"]["peak"])
    assert totals["memory: peak"] == peaks
    assert peaks[1] < peaks[0]
    assert "a step" in totals
    (again,) = [one for one in diff.lines if one.what.startswith("recomputed")]
    assert (again.unit, again.before, again.after) == ("FLOPs", 0, reports["kept"]["recomputed"][0]["flops_per_step"])
    assert "recomputed: layer at" in str(diff)
    assert "new" in str(diff)


def test_a_collective_that_goes_is_told_by_its_line(reports):
    without = {**reports["plain"], "collectives": reports["plain"]["collectives"][1:]}
    (line,) = diff_reports(reports["plain"], without).lines
    first = reports["plain"]["collectives"][0]["source"]
    assert line.what.endswith(f"test_storing.py:{first['line']}")
    assert (line.unit, line.after) == ("bytes", 0)


def test_a_line_of_a_package_is_the_same_wherever_that_is_installed(reports, tmp_path):
    """As in two environments; a file that is in no package is another one in another folder."""
    files = [tmp_path / one / "site-packages" / "models" / "layers.py" for one in ("old", "new")]
    sides = []
    for file in files:
        file.parent.mkdir(parents=True)
        source = {"file": str(file), "line": 7, "function": "layer"}
        collectives = [{**one, "source": source} for one in reports["plain"]["collectives"]]
        sides.append({**reports["plain"], "collectives": collectives})
    assert diff_reports(*sides).lines
    for file in files:
        (file.parent / "__init__.py").touch()
    assert not diff_reports(*sides)


def test_as_many_bytes_in_other_runs_differ(reports):
    first = {**reports["plain"]["collectives"][0]}
    again = {**reports["plain"], "collectives": [{**first, "count": 9}, *reports["plain"]["collectives"][1:]]}
    (line,) = diff_reports(reports["plain"], again).lines
    assert (line.unit, line.before, line.after) == ("runs", first["count"], 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{}",
            r"x\.json is not a report of outlay explain: it lacks name, .*\n  fix: outlay explain RECIPE --json > x",
        ),
        ("[]", "it lacks name"),
        ("{", "cannot be read as a report"),
        ("[" * 100_000, "cannot be read as a report"),
    ],
)
def test_other_files_are_no_reports(tmp_path, text, message):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ExplainError, match=message):
        read_report(file)


def test_a_page_is_no_report_and_is_not_to_be_written_over(tmp_path):
    page = tmp_path / "step.html"
    page.write_text("<!doctype html>")
    with pytest.raises(
        ExplainError, match=r"step\.html cannot be read .*\n  fix: outlay explain RECIPE --json > step\.json"
    ):
        read_report(page)
