import inspect
import json

import jax
import jax.numpy as jnp
import pytest
from tests.unit.program.test_storing import NUM_LAYERS, layer, program_of

import outlay
from outlay.errors import ExplainError
from outlay.report.explain.timeline_trace import timeline_trace

_, FIRST = inspect.getsourcelines(layer)
LAYER = (FIRST + 2, FIRST + 3)
"""The lines of its two products."""


def test_the_predicted_step_is_drawn_on_its_tracks_with_the_line_of_each_operation():
    explanation = outlay.explain(program_of())
    events = json.loads(json.dumps(timeline_trace(explanation)))["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {1: "compute", 2: "links", 3: "host", 4: "fetches"}
    spans = [event for event in events if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in spans)
    assert explanation.estimate is not None
    assert end == pytest.approx(explanation.estimate.seconds * 1e6, rel=0.05)
    loops = [event for event in spans if event["name"].startswith("loop ")]
    assert {event["args"]["rounds"] for event in loops} == {NUM_LAYERS}
    for loop in loops:
        inside = [e for e in spans if e["tid"] == 1 and loop["ts"] <= e["ts"] < loop["ts"] + loop["dur"] / NUM_LAYERS]
        assert len(inside) > 1
    lines = {event["args"].get("line", "").rpartition("/")[2] for event in spans}
    assert {f"test_storing.py:{number}" for number in LAYER} <= lines
    assert {event["args"]["bound by"] for event in spans if event["tid"] == 2} == {"communication"}


def test_without_a_target_there_is_no_timeline():
    explanation = outlay.explain(jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile().as_text())
    with pytest.raises(ExplainError, match="without a target there are no times to draw\n  fix: --target"):
        timeline_trace(explanation)
