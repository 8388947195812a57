"""What is wrong with the settings of a spiker or an integrator, in sentences."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


def not_positive(settings: Any, *names: str) -> list[str]:
    """A sentence for each of these settings that is no positive, finite number."""
    bad = [name for name in names if not (_is_finite(getattr(settings, name)) and getattr(settings, name) > 0)]
    return [_sentence(settings, name, "a positive number") for name in bad]


def negative(settings: Any, *names: str) -> list[str]:
    """A sentence for each of these settings that is no finite number, or below 0."""
    bad = [name for name in names if not (_is_finite(getattr(settings, name)) and getattr(settings, name) >= 0)]
    return [_sentence(settings, name, "0 or a positive number") for name in bad]


def _sentence(settings: Any, name: str, allowed: str) -> str:
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    example = 1 if field.default is dataclasses.MISSING else field.default
    return f"{name} is {_with_unit(getattr(settings, name), field)}\n{allowed}, such as {_with_unit(example, field)}"


def _with_unit(value: Any, field: dataclasses.Field) -> str:
    """A setting's value as people write it."""
    text = f"{value:g}" if isinstance(value, int | float) else repr(value)
    return f"{text} {field.metadata.get('unit', '')}".rstrip()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf  # whole numbers too large for a float as well
