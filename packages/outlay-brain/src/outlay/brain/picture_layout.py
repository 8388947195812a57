"""Lay out a directed graph in columns, so that no line runs behind a box (after Sugiyama, Tagawa and Toda, 1981).

A signal goes from left to right, as far as cycles allow. A line that spans several columns gets a place of its own in
each column between its ends, among the boxes there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

Edge = tuple[str, str]
Item = Hashable
"""A box, by its name, or the place of a line in a column: its edge, and the number of the column."""
_SWEEPS = 4


@dataclass(frozen=True)
class Placed:
    """Where boxes and lines are, in columns from left to right and rows from top to bottom.

    Attributes:
        columns: the column of each box.
        rows: the height of each box and of each place of a line, in rows around 0; the first row of a column is the
            highest.
    """

    columns: Mapping[str, int]
    rows: Mapping[Item, float]

    def through(self, edge: Edge) -> list[tuple[int, float]]:
        """Return the column and the row of each place that a line passes between its ends, in its direction."""
        return [(column, self.rows[edge, column]) for column in _between(edge, self.columns)]


def columns_of(names: Sequence[str], edges: Collection[Edge]) -> dict[str, int]:
    """Return the column of each box: one more than the largest column that it reads, except in cycles.

    Boxes in a cycle begin where what enters the cycle last ends, and follow each other by their distance from there.

    >>> columns_of(["in", "a", "b", "c", "out"], [("in", "a"), ("a", "b"), ("b", "a"), ("in", "c"), ("b", "out")])
    {'in': 0, 'a': 1, 'b': 2, 'c': 1, 'out': 3}
    """
    after = {name: [target for source, target in edges if source == name and target != name] for name in names}
    columns: dict[str, int] = {}
    for component in _components(names, after):
        entries = {
            name: max(
                (columns[source] + 1 for source, target in edges if target == name and source in columns), default=0
            )
            for name in component
        }
        first = max(entries.values())
        reached = [name for name in component if entries[name] == first]
        columns.update(dict.fromkeys(reached, first))
        # The list grows while it is walked: breadth first.
        for name in reached:
            for target in after[name]:
                if target in entries and target not in columns:
                    columns[target] = columns[name] + 1
                    reached.append(target)
    return columns


def placed(columns: Mapping[str, int], edges: Collection[Edge]) -> Placed:
    """Order boxes and lines within their columns, each near what it is connected to.

    Args:
        columns: the column of each box.
        edges: the connections.
    """
    items: dict[int, list[Item]] = {column: [] for column in range(max(columns.values()) + 1)}
    for name, column in columns.items():
        items[column].append(name)
    near: dict[Item, list[Item]] = {}
    for edge in edges:
        chain: list[Item] = [edge[0], *((edge, column) for column in _between(edge, columns)), edge[1]]
        for item, (_, column) in zip(chain[1:-1], chain[1:-1], strict=True):  # type: ignore[misc]  # places of lines
            items[column].append(item)
        for one, other in itertools.pairwise(chain):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    rows = _rows(items)
    for sweep in range(_SWEEPS):
        for column in sorted(items, reverse=bool(sweep % 2)):
            items[column].sort(key=lambda item: -_mean([rows[other] for other in near.get(item, [])], rows[item]))
            rows |= _rows({column: items[column]})
    return Placed(columns, rows)


def _between(edge: Edge, columns: Mapping[str, int]) -> range:
    start, end = columns[edge[0]], columns[edge[1]]
    return range(start + 1, end) if end > start else range(start - 1, end, -1)


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _rows(items: Mapping[int, list[Item]]) -> dict[Item, float]:
    """Stack the items of each column around the middle; a line takes half the height of a box."""
    rows: dict[Item, float] = {}
    for column in items.values():
        heights = [1.0 if isinstance(item, str) else 0.5 for item in column]
        top = sum(heights) / 2
        for item, height in zip(column, heights, strict=True):
            rows[item] = top - height / 2
            top -= height
    return rows


def _components(names: Sequence[str], after: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the cycles, and each other box alone, each after all that lead to it (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()
    for name in reversed(names):
        stack = [(name, iter(after[name]))] if name not in seen else []
        seen.add(name)
        while stack:
            at, targets = stack[-1]
            target = next((target for target in targets if target not in seen), None)
            if target is None:
                order.append(at)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(after[target])))
    before: dict[str, list[str]] = {name: [] for name in names}
    for name, targets in after.items():
        for target in targets:
            before[target].append(name)
    components, taken = [], set()
    for name in reversed(order):
        if name in taken:
            continue
        component, waiting = [], [name]
        taken.add(name)
        while waiting:
            at = waiting.pop()
            component.append(at)
            new = [source for source in before[at] if source not in taken]
            taken.update(new)
            waiting += new
        components.append(sorted(component, key=names.index))
    return components
