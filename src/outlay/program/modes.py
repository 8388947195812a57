"""The modes of a program: how a step is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Mode = Literal["auto", "manual", "placed"]
"""Who splits a step: XLA, the step itself on shards, or a program for each part of a graph."""
Step = Callable[[Any, Any], tuple[Any, Any]]
"""A pure function of state and batch, which returns the next state and outputs."""
