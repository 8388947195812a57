"""The ways through a graph of NIR from population to population, by the linear maps and delays between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Wrong = Callable[[str, str, str], None]
"""Takes what is wrong: node, what, cure."""


@dataclass(frozen=True)
class Route:
    """One way.

    Attributes:
        source: an `Input` or a population.
        target: a population or an `Output`.
        weight: what spikes are multiplied with on the way, (target, source); None if nothing stands there.
        delay: on the way, in seconds.
        to_output: whether it ends in an `Output`.
    """

    source: str
    target: str
    weight: np.ndarray | None = None
    delay: float = 0.0
    to_output: bool = False


def routes(graph: Any, populations: Collection[str], wrong: Wrong) -> list[Route]:
    """Every way of a graph.

    Args:
        graph: the graph.
        populations: the kinds of nodes that spike.
        wrong: takes each node that is not understood.
    """
    known = {*populations, "Input", "Output", "Linear", "Affine", "Delay"}
    for name, node in graph.nodes.items():
        kind = type(node).__name__
        if kind not in known:
            wrong(name, f"a Brain knows no {kind}", f"a graph of {', '.join(sorted(known))}")
        elif kind == "Affine" and np.any(node.bias):
            wrong(name, "it adds a bias, and synapses only multiply", "a bias of 0, or none")
        elif kind == "Delay" and not _is_one(node.delay):
            wrong(name, "its delays differ from each other, and a connection has one", "one delay for all")
    starts = [name for name, node in graph.nodes.items() if type(node).__name__ in (*populations, "Input")]
    return [way for start in starts for way in _from(graph, Route(start, start), populations, wrong)]


def _from(graph: Any, way: Route, populations: Collection[str], wrong: Wrong) -> Iterator[Route]:
    """The ways that go on from the end of one."""
    for target in [after for before, after in graph.edges if before == way.target]:
        node, there = graph.nodes[target], replace(way, target=target)
        kind = type(node).__name__
        if kind in populations:
            if type(graph.nodes[way.source]).__name__ == "Input" and way.delay:
                wrong(target, f"a delay comes between it and the input {way.source}", "delay what is fed in")
            yield there
        elif kind == "Output":
            if way.source != way.target or type(graph.nodes[way.source]).__name__ not in populations:
                wrong(
                    target, f"what comes out is no spikes but what {way.target} makes of them", "spikes of a population"
                )
            yield replace(there, to_output=True)
        elif kind in ("Linear", "Affine"):
            if way.weight is not None:
                wrong(target, f"it follows another linear node, {way.target}", "one with the product of their weights")
                continue
            yield from _from(graph, replace(there, weight=np.asarray(node.weight)), populations, wrong)
        elif kind == "Delay" and _is_one(node.delay):
            delay = way.delay + float(np.asarray(node.delay).reshape(-1)[0])
            yield from _from(graph, replace(there, delay=delay), populations, wrong)


def _is_one(values: Any) -> bool:
    values = np.asarray(values).reshape(-1)
    return values.size > 0 and bool(np.all(values == values[0]))
