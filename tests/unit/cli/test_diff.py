"""`outlay diff` as a user meets it: what it prints, and its exit codes."""

import json

from tests.unit.cli.command import LINE, command_here


def test_layouts_and_reports_are_compared_and_the_exit_code_says_how(tmp_path):
    output = command_here("diff", "fsdp", "replicated", "--recipe", LINE, "--devices", "8", cwd=tmp_path)
    assert output.exit_code == 1, output.stderr
    assert output.stdout.startswith("fsdp -> replicated: step on data=8 cpu:8\n")
    assert "sent in a step" in output.stdout
    report = command_here(*("explain", LINE, "--devices", "8", "--json", "--trace", "trace.json"), cwd=tmp_path)
    assert "wrote trace.json: open it at https://ui.perfetto.dev\n" in report.stderr
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(report.stdout)
    same = command_here("diff", "a.json", "b.json", "--json", cwd=tmp_path)
    assert same.exit_code == 0, same.stderr
    assert json.loads(same.stdout)["same"] is True


def test_only_a_limit_that_is_exceeded_fails_and_markdown_is_for_review(tmp_path):
    reports = {}
    for layout in ("fsdp", "replicated"):
        report = command_here("explain", LINE, "--devices", "8", "--layout", layout, "--json", cwd=tmp_path)
        (tmp_path / f"{layout}.json").write_text(report.stdout)
        reports[layout] = json.loads(report.stdout)
    files, kind = ("fsdp.json", "replicated.json"), "all-reduce"
    sent = [
        sum(one["bytes_per_step"] for one in reports[name]["collectives"] if one["kind"] == kind) for name in reports
    ]
    assert sent[0] != sent[1]
    more, less = (files[::-1], files) if sent[0] > sent[1] else (files, files[::-1])
    passed = command_here("diff", *less, "--fail-if", f"{kind}>+0", "--fail-if", "memory>1TB", cwd=tmp_path)
    assert passed.exit_code == 0, passed.stderr
    broken = command_here("diff", *more, "--fail-if", f"{kind}>+0", "--markdown", "--html", "page.html", cwd=tmp_path)
    assert broken.exit_code == 1
    assert f"over the limit {kind}>+0: {kind} is " in broken.stderr
    assert broken.stdout.startswith(f"**Layout** {more[0]} -> {more[1]}: step on data=8 cpu:8".replace("_", r"\_"))
    assert f"- :x: {kind}\\>+0" in broken.stdout
    assert "| figure | fsdp.json" in broken.stdout or "| figure | replicated.json" in broken.stdout
    assert (
        "What changes" in (tmp_path / "page.html").read_text()
        or "step on data=8" in (tmp_path / "page.html").read_text()
    )
    odd = command_here("diff", *files, "--fail-if", "memry>+2%", cwd=tmp_path)
    assert odd.exit_code == 2
    assert "did you mean 'memory'" in odd.stderr


def test_another_file_than_a_report_ends_with_2(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    output = command_here("diff", "a.json", "a.json", cwd=tmp_path)
    assert output.exit_code == 2
    assert "a.json is not a report of outlay explain" in output.stderr
    for options in (("--devices", "4"), ("--compiler-options", "none")):
        output = command_here("diff", "a.json", "a.json", *options, cwd=tmp_path)
        assert output.exit_code == 2
        assert "it goes with --recipe" in output.stderr
