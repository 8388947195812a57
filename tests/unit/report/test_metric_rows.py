"""Rows of numbers in the report of a run, whatever a file of metrics holds."""

import math

from outlay.report.metric_rows import row_sections


def test_a_row_has_eight_numbers_and_all_of_them_are_drawn():
    load = [0.0] * 9 + [0.75]
    (section,) = row_sections({"step": 12, "loss": 1.0, "load": load, "empty": []})
    assert section.title == "load in step 12"
    first, second = section.blocks[0].rows
    assert (first.name, first.total, first.share) == ("0", "0", 0.0)
    assert (second.name, second.total, second.share) == ("8", "0.75", 1.0)
    assert second.cells == [("0", 0.0), ("0.75", 1.0), *[("", 0.0)] * 6]


def test_what_is_no_number_is_said():
    (section,) = row_sections({"load": [None, "x", -2.0, math.inf]})
    assert section.title == "load"
    texts = [text for text, _ in section.blocks[0].rows[0].cells]
    assert texts == ["not finite", "not finite", "-2", "not finite"]
