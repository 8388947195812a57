"""A choice is described by its axes, what it waits for, and what comes next."""

from tests.unit.search.pretend import GIB, price

import outlay
from outlay.layout.layout import Layout
from outlay.search.in_a_paragraph import in_a_paragraph

PIPELINE = Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=8))]) + outlay.data_parallel()
CONTEXT = Layout([("@attention", outlay.layout.context("context", "ring"))]) + outlay.fsdp()


def test_each_axis_has_its_role_and_place():
    where = {"crossing": ("stage", "data"), "bytes_by_axes": {"data": 3 * GIB, "stage": GIB}}
    text = in_a_paragraph(
        PIPELINE, "stage=4@hosts,data=8,model=1", price(2.0, **where), [("dp data=8", "1.50x the time")]
    )
    assert text.startswith("Over stage=4 (across hosts) layers are a pipeline: 8 microbatches once through 4 stages")
    assert "27.3 % of them idle; over data=8 (across hosts) samples are split. A step takes" in text
    assert "50% products and 50% communication" in text
    assert "A device sends 3.0 GiB over data, 1.0 GiB over stage, and waits for it 50% of the time." in text
    assert text.endswith("Next is dp data=8: 1.50x the time.")
    assert "model" not in text


def test_split_tokens_name_their_exchange():
    text = in_a_paragraph(CONTEXT, "data=2,context=4", price(2.0))
    assert "over context=4 (inside a host) tokens are split, with an exchange by ring" in text


def test_fsdp_over_tokens_too_leaves_an_axis_its_role():
    over_both = Layout([("@attention", outlay.layout.context("context", "ring"))]) + outlay.fsdp(("data", "context"))
    text = in_a_paragraph(over_both, "data=2,context=4,stage=2", price(2.0))
    assert "over context=4 (inside a host) tokens are split, with an exchange by ring" in text
    assert "over stage=2 (inside a host) arrays are split" in text


def test_axes_that_cross_together_need_not_cross_alone():
    where = {"crossing": ("data", "data+context"), "bytes_by_axes": {"data+context": 2 * GIB, "context": GIB}}
    text = in_a_paragraph(CONTEXT, "data=2,context=8", price(2.0, **where))
    assert "Over data=2 (across hosts)" in text
    assert "over context=8 (inside a host)" in text
