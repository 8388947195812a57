"""A placement as a layout."""

from __future__ import annotations

import dataclasses

from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.rule import Rule
from outlay.layout.strategies import by_module
from outlay.search.placement.choice import Way


def layout_of(way: Way) -> Layout:
    """The layout of a way that has a placement."""
    assert way.placement is not None
    # A part without a state is only in the cache, and one that nobody reads is not even there.
    rules = [dataclasses.replace(rule, optional=True) for rule in by_module(way.placement).rules]
    return Layout([*rules, Rule("batch.**", replicate(), optional=True)])
