"""Name the sum over a batch inside a step, so that a mode can decide how devices take it together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

Sums = Callable[[Any, Any], Any]
"""`sums(params, samples)`: a tree of sums over samples."""

Gradient = Callable[[Sums, Any, Any], tuple[Any, Any]]
"""`gradient(sums, params, samples) -> (gradients, sums)`: how one device takes them."""

Runner = Callable[[Gradient, Sums, Any, Any], tuple[Any, Any]]

_runner: ContextVar[Runner | None] = ContextVar("outlay_batch_sum", default=None)


def gradient_of_sums(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any]:
    """Gradients of sums over a batch and the sums themselves, by whatever means the program's mode has.

    Args:
        gradient: how they are taken on one device, from all samples.
        sums: what is differentiated; the first of its results.
        params: what it is differentiated by, a tree that the plan knows as `params`.
        samples: a tree of arrays with one entry per sample, of which `samples["batch"]` is the step's batch.
    """
    runner = _runner.get()
    return gradient(sums, params, samples) if runner is None else runner(gradient, sums, params, samples)


@contextlib.contextmanager
def summing(runner: Runner | None) -> Iterator[None]:
    """Let `gradient_of_sums` use a runner while a step is traced."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)


_marker: ContextVar[Callable[[Any], Any] | None] = ContextVar("outlay_per_device", default=None)


def per_device(tree: Any) -> Any:
    """Mark constants that a loop will fill with each device's own sums, such as the zeros of an accumulator."""
    marker = _marker.get()
    return tree if marker is None else marker(tree)


@contextlib.contextmanager
def marking(marker: Callable[[Any], Any]) -> Iterator[None]:
    """Let `per_device` mark values while a hand-written region is traced."""
    token = _marker.set(marker)
    try:
        yield
    finally:
        _marker.reset(token)
