"""What several parts of a report ask for is computed once for a program, and follows its length."""

import sys
from collections import Counter
from types import CodeType

import pytest
from tests.unit.analysis.hlo.golden import golden_text

from outlay.analysis.cost.price import time_on_lanes
from outlay.analysis.hlo.dataflow import outputs_reached
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.parse import parse_hlo
from outlay.report.explain.explain import explain


def code_of(function):
    return getattr(function, "__wrapped__", function).__code__


def calls_of(run):
    """How often each function runs, by its code."""
    calls: Counter[CodeType] = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("function", [collectives_of, runs_per_step, time_on_lanes])
def test_a_report_computes_it_once(function):
    calls = calls_of(lambda: explain(golden_text("cpu-0.10.2-fsdp"), target="cpu:8"))
    assert calls[code_of(function)] == 1


def text_of(num: int) -> str:
    """A program that sums each of its arrays over two devices and returns them all as one tuple."""
    numbers = range(num)
    shapes = ", ".join("f32[8]{0}" for _ in numbers)
    parameters = "".join(f"  %p{i} = f32[8]{{0}} parameter({i})\n" for i in numbers)
    sums = "".join(
        f"  %sum{i} = f32[8]{{0}} all-reduce(%p{i}), replica_groups={{{{0,1}}}}, to_apply=%add\n" for i in numbers
    )
    root = f"  ROOT %out = ({shapes}) tuple({', '.join(f'%sum{i}' for i in numbers)})\n"
    add = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    add += "  ROOT %c = f32[] add(%a, %b)\n}\n"
    head = f"HloModule jit_f, is_scheduled=true, num_partitions=2\n\n{add}\n"
    return f"{head}ENTRY %main () -> ({shapes}) {{\n{parameters}{sums}{root}}}\n"


def test_to_follow_a_value_into_a_long_tuple_looks_at_its_own_place_in_it():
    def lines_run(num):
        module = parse_hlo(text_of(num))
        assert outputs_reached(module, "main", "sum3") == (3,)  # which knows the users of each instruction
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            outputs_reached(module, "main", "sum5")
        finally:
            sys.settrace(before)
        return lines

    assert lines_run(400) == lines_run(20)
