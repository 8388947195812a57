import pytest

from outlay.jobs.heartbeat import mark
from outlay.launcher import merged_output
from outlay.launcher.console import OutputConsole
from outlay.launcher.merged_output import MergedOutput, StepOrder


def written(step):
    return mark(step).decode().rstrip("\n")


@pytest.fixture
def order():
    return StepOrder(2)


def test_lines_of_a_step_come_when_all_have_finished_it_in_the_order_of_processes(order):
    order.add(1, ["b0", written(1), "b1"])
    order.add(0, ["a0"])
    assert list(order.ready()) == []
    order.add(0, [written(1)])
    assert list(order.ready()) == [(0, "a0"), (1, "b0")]
    order.add(0, ["a1", written(2), "a2"])
    assert list(order.ready()) == []
    order.add(1, [written(2)])
    assert list(order.ready()) == [(0, "a1"), (1, "b1")]
    assert list(order.rest()) == [(0, "a2")]


def test_a_mark_in_the_middle_of_a_line_leaves_the_line_whole(order):
    assert order.add(0, ["half" + written(1), " and half"]) == ["half and half"]
    assert order.add(0, ["never ended" + written(2)]) == []
    order.end(0)
    order.end(1)
    assert list(order.ready()) == [(0, "half and half"), (0, "never ended")]


def test_nobody_waits_for_a_process_that_has_ended(order):
    order.add(0, ["a", written(7)])
    order.end(1)
    assert list(order.ready()) == [(0, "a")]


def test_a_failure_shows_what_was_held_back_before_it(tmp_path, capsys):
    output = MergedOutput(2, tmp_path / "log", OutputConsole(), in_order=True)
    output.add(0, "stderr", ["a warning", written(1)])
    output.add(1, "stdout", ["a result"])
    output.hold_errors()
    output.add(1, "stderr", ["aftermath"])
    output.close()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[1] a result\n", "[0] a warning\n")
    assert (tmp_path / "log").read_text() == "[0] a warning\n[1] a result\n[1] aftermath\n"
    assert output.num_held(but=0) == 1


def test_what_is_held_back_is_bounded_and_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(merged_output, "_MOST", 100)
    output = MergedOutput(2, tmp_path / "log", OutputConsole(), in_order=True)
    output.add(0, "stdout", [written(1), "x" * 60])
    assert capsys.readouterr().out == ""
    output.add(0, "stdout", ["y" * 60])
    shown = capsys.readouterr()
    assert shown.out.count("[0]") == 2
    assert "held back for a process that is behind: they are not all in order of steps" in shown.err
    output.add(1, "stdout", ["late", written(1)])
    output.close()
    assert capsys.readouterr().out == "[1] late\n"
