"""Trip counts that are not written down are derived from the condition."""

import re

import pytest
from tests.unit.analysis.hlo.golden import FILES, golden_text

from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.parse import parse_hlo

LOOP = """HloModule m, num_partitions=2

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %state = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[4]{{0}} get-tuple-element(%state), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  %y = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=%add
  ROOT %out = (s32[], f32[4]{{0}}) tuple(%next, %y)
}}

%condition (state.1: (s32[], f32[4])) -> pred[] {{
  %state.1 = (s32[], f32[4]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[] constant({limit})
  ROOT %go = pred[] compare({compared}), direction={direction}
}}

ENTRY %main (start: s32[], x.1: f32[4]) -> f32[4] {{
  %given = s32[] parameter(0)
  %x.1 = f32[4]{{0}} parameter(1)
  %start = s32[] constant({start})
  %first = (s32[], f32[4]{{0}}) tuple({first}, %x.1)
  %loop = (s32[], f32[4]{{0}}) while(%first), condition=%condition, body=%body{config}
  ROOT %result = f32[4]{{0}} get-tuple-element(%loop), index=1
}}
"""
PLAIN = {
    "start": 0,
    "step": 1,
    "limit": 10,
    "direction": "LT",
    "compared": "%i.1, %limit",
    "first": "%start",
    "config": "",
}


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({}, (10, True)),
        ({"start": 3}, (7, True)),
        ({"step": 3}, (4, True)),
        ({"direction": "LE"}, (11, True)),
        ({"direction": "NE"}, (10, True)),
        ({"direction": "NE", "step": 3}, (1, False)),  # never meets the limit
        ({"start": 10, "step": -1, "limit": 0, "direction": "GT"}, (10, True)),
        ({"start": 10, "step": -3, "limit": 1, "direction": "GE"}, (4, True)),
        ({"compared": "%limit, %i.1", "direction": "GT"}, (10, True)),
        ({"start": 20}, (0, True)),
        ({"step": 0}, (1, False)),
        ({"step": -1}, (1, False)),
        ({"first": "%given"}, (1, False)),
        ({"compared": "%i.1, %i.1"}, (1, False)),
        ({"first": "%given", "config": ', backend_config={"known_trip_count":{"n":"12"}}'}, (12, True)),
    ],
)
def test_runs_of_one_loop(changes, runs):
    module = parse_hlo(LOOP.format(**PLAIN | changes))
    times, exact = runs
    assert runs_per_step(module) == {"main": (1, True), "body": runs, "condition": (times + 1, exact)}
    assert [(one.count, one.count_is_exact) for one in collectives_of(module)] == [runs]


LOOPING = [name for name in FILES if name.split("-")[2] in ("fsdp", "ring", "nested")]


@pytest.mark.parametrize("name", [name for name in LOOPING if "tpu" not in name])
def test_derived_counts_are_those_that_the_compiler_knows(name):
    text = golden_text(name)
    without = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", text)
    assert without != text
    assert runs_per_step(parse_hlo(without)) == runs_per_step(parse_hlo(text))


@pytest.mark.parametrize("name", [name for name in LOOPING if "tpu" in name])
def test_a_compiler_that_writes_no_counts(name):
    text = golden_text(name)
    assert "known_trip_count" not in text
    assert all(exact for _, exact in runs_per_step(parse_hlo(text)).values())


def test_calls_pass_the_count_on_and_fusions_are_not_followed():
    module = parse_hlo("""HloModule m

%twice (a: f32[4]) -> f32[4] {
  ROOT %a = f32[4]{0} parameter(0)
}

%fused (b: f32[4]) -> f32[4] {
  ROOT %b = f32[4]{0} parameter(0)
}

%wrapped (c: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} parameter(0)
}

%left (d: f32[4]) -> f32[4] {
  ROOT %d = f32[4]{0} parameter(0)
}

%right (e: f32[4]) -> f32[4] {
  ROOT %e = f32[4]{0} parameter(0)
}

ENTRY %main (x: f32[4], which: s32[]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %which = s32[] parameter(1)
  %one = f32[4]{0} call(%x), to_apply=%twice
  %two = f32[4]{0} call(%one), to_apply=%twice
  %three = f32[4]{0} fusion(%two), kind=kLoop, calls=%fused
  %four = ((f32[4]{0}), f32[4]{0}, u32[]) async-start(%three), calls=%wrapped
  %five = f32[4]{0} async-done(%four)
  ROOT %six = f32[4]{0} conditional(%which, %five, %five), branch_computations={%left, %right}
}
""")
    assert runs_per_step(module) == {
        "main": (1, True),
        "twice": (2, True),
        "wrapped": (1, True),
        "left": (1, False),
        "right": (0, False),
    }


def test_a_program_that_calls_itself_is_refused_by_no_hang():
    module = parse_hlo("""HloModule m

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %y = f32[4]{0} call(%x), to_apply=%main
}
""")
    assert "main" in runs_per_step(module)
