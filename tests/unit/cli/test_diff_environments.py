"""`outlay diff RECIPE --env` and `--against`: one recipe in two environments, or with two sets of compiler options."""

import json
import sys
import venv
from pathlib import Path

import pytest
from tests.unit.cli.command import LINE, command_here

from outlay.cli.environments import Environment, verdict_code
from outlay.report.explain.diff_limits import broken_limits, read_limit
from outlay.report.explain.explain_diff import diff_reports

HERE = Path(sys.prefix)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An environment that holds nothing."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


@pytest.mark.thorough  # sets of options are compared alike below
@pytest.mark.processes
def test_the_same_environment_makes_the_same_program_and_the_numbers_of_one_device(tmp_path):
    """Of the times to trace and compile none is a difference: no two are the same."""
    output = command_here("diff", LINE, "--env", str(HERE), "--devices", "2", "--json", cwd=tmp_path)
    assert output.exit_code == 0, output.stderr
    facts = json.loads(output.stdout)
    assert facts["same"] is True
    assert facts["numbers"] == ["the same", "the same"]
    assert {one["what"] for one in facts["made"]} == {"to trace and lower", "to compile"}
    assert "outlay verify" in output.stderr


@pytest.mark.processes
def test_two_sets_of_options_are_named_and_a_limit_on_compiling_can_fail(tmp_path):
    flags = tmp_path / "flags"
    flags.write_text("--xla_cpu_enable_fast_math=true\n")
    words = ("diff", LINE, "--against", str(flags), "--devices", "2", "--no-numbers", "--fail-if", "compile>0s")
    output = command_here(*words, cwd=tmp_path)
    assert output.exit_code == 1
    assert output.stdout.startswith(f"preset -> {flags}: step on data=2 cpu:2")
    assert "to compile" in output.stdout
    assert "over the limit compile>0s: compile is " in output.stderr


@pytest.mark.processes
def test_what_cannot_be_compared_ends_with_2_and_says_where(tmp_path, empty):
    for words, message in [
        ((LINE, "--env", str(empty)), "has no outlay and no jax"),
        ((LINE, "--env", str(tmp_path / "nowhere")), "there is no such folder"),
        ((LINE, "--env", str(tmp_path)), "it holds no bin/python"),
        ((LINE, "fsdp", "--env", str(HERE)), "fsdp is one too many"),
        (("lime", "--env", str(HERE)), "fails in the environment of"),
        ((LINE,), "give two reports"),
    ]:
        output = command_here("diff", *words, cwd=tmp_path)
        assert output.exit_code == 2, words
        assert message in " ".join(output.stderr.replace("│", " ").split()), output.stderr


REPORT = {
    **{"name": "step", "bytes_per_step": 8, "collectives": [], "memory": None, "work": None, "estimate": None},
    **{"compile_seconds": 2.0, "trace_seconds": 1.0},
}


def test_verdicts_that_differ_are_a_difference_and_set_the_exit_code():
    numbers = ("the same", "different: 1 array, such as params.w")
    differing = diff_reports(REPORT, REPORT, ("jax 1", "jax 2"), numbers=numbers)
    assert differing
    assert "jax 2: different: 1 array, such as params.w" in str(differing)
    assert "jax 2: different" in differing.to_markdown()
    assert [verdict_code(each) for each in (numbers, ("the same", "unknown: why"), ("the same",) * 2)] == [1, 3, 0]
    assert not diff_reports(REPORT, {**REPORT, "compile_seconds": 3.0}, numbers=())


def test_another_line_or_a_price_that_rounds_otherwise_is_no_difference_of_two_environments():
    def report(line, count):
        source = {"file": "model.py", "line": line}
        one = {"kind": "all-gather", "axes": ["data"], "phase": "forward", "leaf": "params.w", "source": source}
        return {**REPORT, "collectives": [{**one, "bytes_per_step": 8 * count, "count": count}]}

    assert not diff_reports(report(3, 1), report(7, 1), numbers=())
    assert [one.what for one in diff_reports(report(3, 1), report(7, 2), numbers=()).lines] == [
        "all-gather over data, forward: params.w at model.py:7",
        "all-gather over data, forward: params.w at model.py:3",
    ]
    assert len(diff_reports(report(3, 1), report(7, 1)).lines) == 2  # of two layouts the line says what changed
    times = [{**REPORT, "estimate": {"seconds": seconds}} for seconds in (1.0, 1.0001, 1.01)]
    assert [bool(diff_reports(times[0], other, numbers=())) for other in times] == [False, False, True]


def test_an_environment_is_named_by_what_compiles_for_the_target():
    versions = {"outlay": "1", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42", "jax-cuda13-pjrt": "0.10.2"}
    other = Environment("python", dict.fromkeys(versions, "2"))
    here = Environment("python", {**versions, "outlay": "2"})
    assert here.named(other, "cpu") == "jax 0.10.2"
    assert here.named(other, "tpu") == "jax 0.10.2, libtpu 0.0.42"
    assert here.named(other, "") == "jax 0.10.2, libtpu 0.0.42, jax-cuda13-pjrt 0.10.2"
    assert here.named(here, "cpu") == "python"


def test_limits_on_the_time_to_trace_and_compile():
    slower = {**REPORT, "compile_seconds": 5.0, "trace_seconds": None}
    limits = [read_limit(text) for text in ("compile>+100%", "compile>10s", "trace>+1s")]
    broken = broken_limits(limits, REPORT, slower)
    assert [sentence.partition(":")[0] for sentence in broken] == ["compile>+100%", "trace>+1s"]
