"""The table of the costliest operations, and the lanes that the page draws."""

import dataclasses
import re

import pytest
from tests.unit.report.explain.programs import explained

from outlay.analysis.attribution.collective_facts import total, with_waiting
from outlay.analysis.cost.lanes import Stretch, TimedBlock
from outlay.core.terminal_text import Lines, to_text
from outlay.render.page import Page
from outlay.render.text import text_of_page
from outlay.report.explain.explain import explain
from outlay.report.explain.explain_tables import dearest_collectives


@pytest.fixture(scope="module")
def explanation():
    return explained()


def test_operations_are_by_line_costliest_first_and_within_the_step(explanation):
    seconds = [one.seconds for one in explanation.operations]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(one.share for one in explanation.operations) <= 1 + 1e-9
    products = [one for one in explanation.operations if one.flops]
    assert products
    assert all(one.source.file.endswith("programs.py") for one in products)
    assert sum(one.flops for one in products) == pytest.approx(explanation.work.flops_compiled)
    waited = sum(one.seconds for one in explanation.operations if one.bound_by == "communication")
    assert waited == pytest.approx(explanation.estimate.parts["communication"], rel=0.01)


def test_the_page_and_the_text_have_them(explanation):
    first, page, text = explanation.operations[0], explanation.to_html(), str(explanation)
    assert first.what in page
    assert "where the time goes" in text
    assert first.what.split()[0] in text  # the words may be broken over lines
    assert 'id="timeline"' in page
    assert explanation.to_dict()["operations"][0]["bound_by"] == first.bound_by


def test_collectives_say_how_long_the_device_waits_for_them(explanation):
    waited = sum(one.waited * one.count for one in explanation.collectives)
    assert waited == pytest.approx(explanation.estimate.parts["communication"], rel=0.01)
    (table,) = re.findall("kind +axis.*", str(explanation))
    assert "hidden" in table


def test_what_is_hidden_is_the_share_for_which_the_device_does_not_wait():
    fact = dataclasses.replace(explained().collectives[0], name="ring", count=8, seconds=4.0, waited=None)
    inside = Stretch("links", "ring", "communication", 0.0, 4.0, 1.0, runs=1, number=0)
    loop = Stretch("compute", "while", "loop", 0.0, 32.0, 0.0, runs=7, inside=(inside,))
    last = dataclasses.replace(inside, waited=3.0)
    (ring,) = with_waiting([fact], TimedBlock(36.0, {}, [loop, last], {}))
    assert ring.waited == pytest.approx((7 * 1.0 + 3.0) / 8)
    assert total([ring]).waited == pytest.approx(10.0)
    (other,) = with_waiting([dataclasses.replace(fact, name="another")], TimedBlock(36.0, {}, [loop], {}))
    assert other.waited is None
    (section,) = dearest_collectives([ring], 1, 5)
    page = Page("", [section])
    assert "69%" in to_text(Lines(lambda width: text_of_page(page, width)), width=120)


def test_without_a_target_there_are_none():
    text = "HloModule m\n\nENTRY %e (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}"
    assert explain(text).operations == ()
