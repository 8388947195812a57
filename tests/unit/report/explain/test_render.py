"""An explanation as text and as a page; the text of a saved program stands in tests/golden/explain_fsdp.txt.

To write it anew: `OUTLAY_UPDATE_GOLDEN=1 pytest tests/unit/report/explain/test_render.py`, then read the diff.
"""

import dataclasses
import html
import os
import re
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.hlo.golden import golden_text
from tests.unit.report.explain.programs import explain_on, explained, shape, training

from outlay.analysis.attribution.collective_facts import rows
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.terminal_text import to_text
from outlay.devices.build import mesh
from outlay.layout.layout import Layout
from outlay.report.explain.explain import explain
from outlay.report.explain.explain_tables import short_source as place

GOLDEN = Path(__file__).parents[3] / "golden/explain_fsdp.txt"


def test_golden():
    on = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    text = to_text(explain(golden_text("gpu-0.12.0.1-fsdp"), mesh=on, target="h100:1x8"), width=100) + "\n"
    if os.environ.get("OUTLAY_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def explanation():
    return explained(Layout([("**", P()), ("batch.**", P())]))


def test_the_order_of_the_text(explanation):
    text = str(explanation)
    heads = [
        "fits: peak",
        "a step would take",
        "collectives: none",
        "memory of a device",
        "work of a device",
        "findings: ",
        "note: ",
    ]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert "fix: " in text


@pytest.mark.compiles
@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width):
    text = to_text(explained(), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "params.w0" in text


def test_the_page_holds_all_of_it():
    program = training(batch_size=16)
    explanation = explain(program)
    page = explanation.to_html()
    words = html.unescape(re.sub(r"<wbr>", "", page))
    for row in rows(explanation.collectives):
        assert f"<code>{row.what}</code>" in words
    for finding in explanation.findings:
        assert finding.fix in words
    for value in explanation.memory.largest:
        assert value.what in words
    assert "fsdp + data_parallel" in words
    planned = [leaf for leaf in program.plan.leaves if leaf.kind != "intermediate"]
    assert sum(one.num_leaves for one in explanation.layout.placed) == len(planned)
    assert sum(one.bytes_per_device for one in explanation.layout.placed) == sum(
        leaf.bytes_per_device for leaf in planned
    )
    for one in explanation.layout.placed:
        assert one.example in words
        assert one.spec in words
    assert "simulated devices" in words
    assert not re.search(r"https?://(?!www\.w3\.org)", page)  # nothing to load
    assert explanation._repr_html_().startswith("<iframe srcdoc=")


def test_names_are_escaped():
    def step(x):
        return x.sum(0)

    step.__name__ = "<script>alert(1)</script>"
    page = explain_on(mesh(data=8), step, ((8, 8), P("data"))).to_html()
    assert "<script>alert" not in page


def test_like_layers_share_a_row():
    def many(params, x):
        for layer in params["layers"]:
            x = x @ layer["w"]  # every layer's
        return x.sum()

    on = mesh(data=8)
    params = {"layers": [{"w": shape(64, 64, on=on, spec=P("data"))} for _ in range(3)]}
    explained = explain(jax.jit(many), params, shape(4096, 64, on=on, spec=P("data")))
    (row,) = [row for row in rows(explained.collectives) if row.kind == "all-gather"]
    assert (row.what, row.total.num_collectives) == ("params.layers.{0..2}.w", 3)


def test_long_paths_are_shown_by_their_end():
    assert place(SourceLine("model.py", 3, "f")) == "model.py:3"
    assert (
        place(SourceLine("/a/very/long/path/to/some/project/models/attention.py", 3, "f")) == "…/models/attention.py:3"
    )
    assert place(None) == ""


def finding(path, num_bytes, kind="replicated", line=9):
    text = f"{path} is replicated on all 8 devices: {num_bytes / 1024:.1f} KiB each (no dim divides by data=8)"
    return Finding(kind, text, f"split it by a rule, ({path!r}, P(...))", num_bytes, SourceLine("model.py", line, "f"))


def test_findings_that_differ_by_layer_only_are_one_which_the_page_unfolds(explanation):
    of_layers = [finding(f"params.layers.{number}.Dense_0.kernel", 1536) for number in range(80)]
    others = [finding("params.layers.3.Dense_0.kernel", 1638), finding("params.layers.3.Dense_0.kernel", 1536, line=8)]
    dearer = finding("params.head", 65536)
    facts = dataclasses.replace(explanation, findings=(dearer, *of_layers, *others))
    text = " ".join(str(facts).split())
    assert "findings: 83 in 4 groups 1. replicated, 80 alike, 120.0 KiB in all: params.layers.{0..79}" in text
    assert "fix: split it by a rule, ('params.layers.*.Dense_0.kernel', P(...)) 2. replicated: params.head" in text
    words = re.sub("<wbr>", "", facts.to_html())
    assert "<summary>all 80</summary>" in words
    assert all(html.escape(one.text) in words for one in facts.findings)
    assert len(facts.to_dict()["findings"]) == 83
