"""Which parameter an optimizer leaf carries: the same path ending and the same shape."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from outlay.core.paths import Parts, split_path

OPTIMIZER_ROOTS = ("opt_state", "optimizer")
"""State under these names follows its parameters without being told."""


def is_optimizer(path: str) -> bool:
    """Whether a leaf is optimizer state by its first part."""
    return split_path(path)[:1] in [(root,) for root in OPTIMIZER_ROOTS]


class Mirrors:
    """Finds the leaves that others mirror.

    `opt_state.0.mu.dense.kernel` mirrors `params.dense.kernel`: the parameter's path, with or without its first part,
    ends the leaf's path, and the shapes agree. The longest such ending names the parameter; a leaf of another shape
    than that parameter (a factored moment) mirrors nothing, whatever shorter endings would fit.

    Args:
        shapes: the shape of every state leaf, by path.

    >>> shapes = {"params.w": (4, 8), "params.enc.w": (4, 8), "opt_state.0.mu.enc.w": (4, 8), "opt_state.0.count": ()}
    >>> Mirrors(shapes).of("opt_state.0.mu.enc.w"), Mirrors(shapes).of("opt_state.0.count")
    (('params.enc.w',), ())
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self._shapes = shapes
        self._by_ending: dict[Parts, list[str]] = collections.defaultdict(list)
        for path in shapes:
            parts = split_path(path)
            if not is_optimizer(path):
                for ending in {parts, parts[1:]} - {()}:
                    self._by_ending[ending].append(path)

    def of(self, path: str, source: str | None = None) -> tuple[str, ...]:
        """The leaves that `path` mirrors: one, none, or several where the tree holds the same paths twice.

        Args:
            path: the leaf, such as an optimizer moment.
            source: only consider leaves whose first part this is.
        """
        parts = split_path(path)
        for start in range(1, len(parts)):
            found = [other for other in self._by_ending.get(parts[start:], ()) if _may_lead(other, parts, source)]
            if found:
                return tuple(other for other in found if tuple(self._shapes[other]) == tuple(self._shapes[path]))
        return ()


def _may_lead(other: str, parts: Parts, source: str | None) -> bool:
    root = split_path(other)[0]
    return root != parts[0] and source in (None, root)
