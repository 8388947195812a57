"""The table of the costliest operations, and the lanes that the page draws."""

import pytest
from tests.unit.report.explain.programs import explained

from outlay.report.explain.explain import explain


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
    assert '<b>links</b><div class="lane">' in page
    assert explanation.to_dict()["operations"][0]["bound_by"] == first.bound_by


def test_without_a_target_there_are_none():
    text = "HloModule m\n\nENTRY %e (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}"
    assert explain(text).operations == ()
