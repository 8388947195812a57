"""Options in the name of a layout."""

import pytest

import outlay
from outlay.errors import LayoutError
from outlay.layout.layout import Layout
from outlay.layout.layout_options import name_with, split_name, with_options

PIPELINED = Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=4))]) + outlay.data_parallel()


def test_names_are_read_as_they_are_written():
    options = {"microbatches": 16, "repeats": 2}
    assert split_name(name_with("pp+host", options)) == ("pp+host", {"microbatches": "16", "repeats": "2"})
    assert split_name("C:/layouts/mine.toml") == ("C:/layouts/mine.toml", {})
    assert split_name("fsdp") == ("fsdp", {})


def test_options_change_their_rules_alone():
    changed = with_options(PIPELINED, {"microbatches": "16"})
    assert changed.rules[1:] == PIPELINED.rules[1:]
    assert changed.rules[0].placement == outlay.layout.pipeline("stage", microbatches=16)
    balanced = with_options(PIPELINED, {"cut": "balanced"}).rules[0].placement
    assert balanced == outlay.layout.pipeline("stage", microbatches=4, cut="balanced")
    split = Layout([("@attention", outlay.layout.context("context"))])
    assert with_options(split, {"exchange": "ring"}).rules[0].placement == outlay.layout.context("context", "ring")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "4"}, "has no option stages\n  fix: use microbatches, repeats, cut, exchange"),
        ({"exchange": "ring"}, "has no context, and so no exchange\n  fix: leave exchange out"),
        ({"microbatches": "many"}, "microbatches=many is no whole number\n  fix: microbatches=8"),
        ({"cut": "even"}, "cut='even'; it is one of 'equal', 'balanced'"),
        ({"microbatches": "1"}, "it is a whole number from 2"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(LayoutError, match=message):
        with_options(PIPELINED, options, "pp")
    with pytest.raises(LayoutError, match="an option without a value: 'repeats'"):
        split_name("pp:repeats")
