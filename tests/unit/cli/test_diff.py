"""`outlay diff` as a user meets it: what it prints, and its exit codes."""

import json

from tests.unit.cli.command import LINE, command_here


def test_layouts_and_reports_are_compared_and_the_exit_code_says_how(tmp_path):
    output = command_here("diff", "fsdp", "replicated", "--recipe", LINE, "--devices", "8", cwd=tmp_path)
    assert output.exit_code == 1, output.stderr
    assert output.stdout.startswith("step on data=8 cpu:8\n")
    assert "sent in a step" in output.stdout
    report = command_here(*("explain", LINE, "--devices", "8", "--json", "--trace", "trace.json"), cwd=tmp_path)
    assert "wrote trace.json: open it at https://ui.perfetto.dev\n" in report.stderr
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(report.stdout)
    same = command_here("diff", "a.json", "b.json", "--json", cwd=tmp_path)
    assert same.exit_code == 0, same.stderr
    assert json.loads(same.stdout)["same"] is True


def test_what_is_no_report_ends_with_2(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    output = command_here("diff", "a.json", "a.json", cwd=tmp_path)
    assert output.exit_code == 2
    assert "a.json is not a report of outlay explain" in output.stderr
    for options in (("--devices", "4"), ("--compiler-options", "none")):
        output = command_here("diff", "a.json", "a.json", *options, cwd=tmp_path)
        assert output.exit_code == 2
        assert "it goes with --recipe" in output.stderr
