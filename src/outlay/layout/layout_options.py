"""Options of a layout's name: `pp+fsdp:microbatches=16,repeats=2` is the layout `pp+fsdp` with other numbers in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlay.core.error_types import LayoutError
from outlay.layout.layout import Layout

OPTIONS = ("microbatches", "repeats", "cut", "exchange")
"""Those of a pipeline, and that of a context."""


def split_name(name: str) -> tuple[str, dict[str, str]]:
    """Separate a layout's name from its options.

    >>> split_name("pp+fsdp:microbatches=16,repeats=2")
    ('pp+fsdp', {'microbatches': '16', 'repeats': '2'})

    Raises:
        LayoutError: an option has no value.
    """
    base, colon, rest = name.partition(":")
    # A file may have a colon in its path; options are what can be read as such.
    if not colon or "/" in rest or "\\" in rest:
        return name, {}
    pairs = [part.partition("=") for part in rest.split(",")]
    if odd := [option for option, equals, value in pairs if not (option and equals and value)]:
        raise LayoutError(
            f"the layout {name!r} has an option without a value: {odd[0]!r}"
            f"\n  fix: write them as in {base}:microbatches=8,repeats=2"
        )
    return base, {option.strip(): value.strip() for option, _, value in pairs}


def name_with(name: str, options: Mapping[str, Any]) -> str:
    """Write a layout's name with options.

    >>> name_with("pp", {"microbatches": 16, "repeats": 1})
    'pp:microbatches=16,repeats=1'
    """
    return f"{name}:{','.join(f'{option}={value}' for option, value in options.items())}" if options else name


def with_options(layout: Layout, options: Mapping[str, Any], name: str = "") -> Layout:
    """Return a layout with other numbers in its pipelines, or another exchange in its contexts.

    Args:
        layout: the layout.
        options: `microbatches`, `repeats` and `cut` of its pipelines, `exchange` of its contexts.
        name: what the user called it, for messages.

    Raises:
        LayoutError: there is no such option, nothing in the layout has it, or its value cannot be.

    >>> pipelined = Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=4))])
    >>> print(with_options(pipelined, {"microbatches": "16", "repeats": 2}))
    1. params.layers.**  pipeline over 'stage' (16 microbatches, 2 repeats)
    """
    if unknown := [option for option in options if option not in OPTIONS]:
        raise LayoutError(
            f"the layout {name or 'here'} has no option {', '.join(unknown)}\n  fix: use {', '.join(OPTIONS)}"
        )
    changed = Layout([replace(rule, placement=_with(rule.placement, options)) for rule in layout])
    if lost := [option for option in options if not any(hasattr(rule.placement, option) for rule in layout)]:
        what = {"exchange": "context"}.get(lost[0], "pipeline")
        raise LayoutError(
            f"the layout {name or 'here'} has no {what}, and so no {', '.join(lost)}\n  fix: leave {lost[0]} out"
        )
    return changed


def _with(placement: Any, options: Mapping[str, Any]) -> Any:
    own = {option: _read(option, value) for option, value in options.items() if hasattr(placement, option)}
    return replace(placement, **own) if own else placement


def _read(option: str, value: Any) -> Any:
    if option in ("cut", "exchange") or not isinstance(value, str):
        return value
    if not value.isdecimal():
        raise LayoutError(f"{option}={value} is no whole number\n  fix: {option}=8")
    return int(value)
