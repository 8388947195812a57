"""Find the leaf that another one mirrors: the same path ending and shape, as optimizer moments mirror parameters."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlay.core.paths import Parts, join_parts, split_path
from outlay.layout.placement import is_optimizer

PARAMETERS = ("params", "parameters", "model", "weights", "variables")
"""Names under which parameters stand; a leaf elsewhere that looks like one of them is a copy."""

_COPY = re.compile(
    r"opt|optim|optimi[sz]er|(opt|optimi[sz]er)_?states?|momentum|moments?|emas?|averages?|averaged|polyak|swa"
    r"|target|teacher|shadow|(target|teacher|ema|averaged?|shadow|slow|old|prev)_\w+|\w+_(target|teacher|ema|average)",
    re.IGNORECASE,
)
"""Names of copies, wherever they stand."""

_MAX_ALIKE = 64
"""The number of leaves with one ending above which the ending is not evidence."""


class MirroredLeaves:
    """Find the leaves that others mirror.

    `opt_state.0.mu.dense.kernel` mirrors `params.dense.kernel`: its path ends with the parameter's path, with or
    without the first part, and the shapes are equal. The longest such ending determines the parameter; if that has
    another shape (as for a factored moment), the leaf mirrors nothing, even if a shorter ending would fit.

    Args:
        shapes: the shape of every state leaf, by path.

    >>> shapes = {"params.w": (4, 8), "params.enc.w": (4, 8), "opt_state.0.mu.enc.w": (4, 8), "opt_state.0.count": ()}
    >>> MirroredLeaves(shapes).of("opt_state.0.mu.enc.w"), MirroredLeaves(shapes).of("opt_state.0.count")
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
        """Return the leaves that `path` mirrors: one, none, or several if the tree has the same paths twice.

        Args:
            path: the leaf, such as an optimizer moment.
            source: only consider the leaves of this subtree, such as `params` or `params.critic`.

        >>> shapes = {"params.actor.w": (4, 8), "params.critic.w": (4, 8), "target.w": (4, 8)}
        >>> MirroredLeaves(shapes).of("target.w", "params.critic")
        ('params.critic.w',)
        """
        parts = split_path(path)
        for start in range(1, len(parts)):
            ending = parts[start:]
            if source is None:
                originals = [other for other in self._by_ending.get(ending, ()) if split_path(other)[0] != parts[0]]
            else:
                originals = self._below(split_path(source), parts, ending)
            if originals:
                return tuple(other for other in originals if tuple(self._shapes[other]) == tuple(self._shapes[path]))
        return ()

    def _below(self, source: Parts, parts: Parts, ending: Parts) -> list[str]:
        """Return the leaves of a subtree with this ending, which may repeat a part of the subtree's own path."""
        if parts[: len(source)] == source:
            return []
        paths = (source[:k] + ending for k in range(len(source) + 1))
        paths_below = dict.fromkeys(join_parts(each) for each in paths if each[: len(source)] == source)
        return [path for path in paths_below if path in self._shapes and not is_optimizer(path)]


@dataclass(frozen=True)
class Copies:
    """Leaves that mirror the leaves of another subtree.

    Attributes:
        below: the subtree that holds them, such as `opt` or `gen.opt_state`.
        sources: the subtree that they mirror, such as `params` or `gen.params`; several if nothing tells which.
        leaves: each copy's path with that of its original.
    """

    below: str
    sources: tuple[str, ...]
    leaves: Mapping[str, str]


def find_copies(shapes: Mapping[str, Sequence[int]], paths: Collection[str]) -> list[Copies]:
    """Find which of these leaves are copies of others, at any depth of the tree.

    A leaf is a copy if it has the path ending and the shape of a leaf elsewhere, and names tell which is the copy: one
    stands among the parameters and the other does not, or has the name of a copy (`ema`, `target`, `opt_state`). Where
    more than the parameters' own root differs (`params.critic.w`, `target.w`), the name of a copy must be present, or
    the whole subtree must be mirrored. Layers that merely look alike are not copies.

    Args:
        shapes: the shape of every state leaf, by path.
        paths: the leaves to ask about.

    >>> shapes = {"gen.params.up": (8, 4), "gen.params.down": (4, 8), "gen.tx.0.mu.up": (8, 4)}
    >>> find_copies(shapes, ["gen.tx.0.mu.up", "gen.params.down"])
    [Copies(below='gen.tx', sources=('gen.params',), leaves={'gen.tx.0.mu.up': 'gen.params.up'})]
    """
    by_ending: dict[Parts, list[Parts]] = collections.defaultdict(list)
    for path in shapes:
        parts = split_path(path)
        for k in range(len(parts)):
            by_ending[parts[k:]].append(parts)
    pairs: dict[tuple[Parts, tuple[Parts, ...]], dict[Parts, Parts]] = collections.defaultdict(dict)
    for path in paths:
        parts = split_path(path)
        # Likeness alone is no evidence: `linear` and `linear_1` look alike and live apart on purpose (decision 15).
        if parts and parts[0] in PARAMETERS and not any(map(_COPY.fullmatch, parts)):
            continue
        heads, originals = _originals(parts, by_ending, shapes)
        if originals:
            sources = tuple(dict.fromkeys(other[: len(other) - len(parts) + len(heads)] for other in originals))
            pairs[heads, sources][parts] = originals[0]
    return _grouped({key: leaves for key, leaves in pairs.items() if _is_evident(*key, leaves, shapes)})


def followers(shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Find leaves that follow others automatically: copies by name and by shape, wherever they stand.

    Optimizer state at the top of the tree is not included: `MirroredLeaves` recognizes it by its root alone.

    >>> net = {"params.up": (8, 4), "params.down": (4, 8), "opt.0.mu.up": (8, 4), "opt.0.mu.down": (4, 8)}
    >>> followers({f"gen.{path}": shape for path, shape in net.items()})
    {'gen.opt.0.mu.up': 'gen.params.up', 'gen.opt.0.mu.down': 'gen.params.down'}
    """
    if not any(_COPY.fullmatch(part) for path in shapes for part in split_path(path)):
        return {}
    copies = find_copies(shapes, [path for path in shapes if not is_optimizer(path)])
    alone = [pair for copy in copies if len(copy.sources) == 1 for pair in copy.leaves.items()]
    # A name must tell the copy from the original: of two alike without one, nobody knows which follows which.
    return {path: other for path, other in alone if copy_names(path) - copy_names(other)}


def copy_names(path: str) -> set[str]:
    """Return the parts of a path that are names of copies.

    >>> copy_names("gen.opt_state.0.mu.up")
    {'opt_state'}
    """
    return {part for part in split_path(path) if _COPY.fullmatch(part)}


def _originals(
    parts: Parts, by_ending: Mapping[Parts, list[Parts]], shapes: Mapping[str, Sequence[int]]
) -> tuple[Parts, list[Parts]]:
    """Return what precedes the longest ending that a leaf shares with an original, and the originals of its shape."""
    for start in range(1, len(parts)):
        alike = by_ending[parts[start:]]
        if len(alike) > _MAX_ALIKE:
            break
        originals = [other for other in alike if _is_copy_of(parts[:start], other[: len(other) - len(parts) + start])]
        if originals:
            # Of actor and critic, take the one whose name the copy has too; else prefer whole networks to their parts.
            likeness = {other: (len({*other[:-1]} & {*parts[:start]}), -len(other)) for other in originals}
            best = [other for other in originals if likeness[other] == max(likeness.values())]
            shape = tuple(shapes[join_parts(parts)])
            return parts[:start], [other for other in best if tuple(shapes[join_parts(other)]) == shape]
    return (), []


def _is_copy_of(head: Parts, other: Parts) -> bool:
    """Return whether names allow a leaf below `head` to be a copy of the leaf with the same ending below `other`."""
    here, there = _differing(head, other)
    if not here or any(part in PARAMETERS for part in here) or any(map(_COPY.fullmatch, there)):
        return False
    is_named = any(map(_COPY.fullmatch, here))
    inside = next((i + 1 for i, part in enumerate(other) if part in PARAMETERS), 0)
    if not inside:
        return is_named or not other
    return head[:inside] != other[:inside] or is_named


def _is_evident(
    head: Parts, sources: tuple[Parts, ...], leaves: Mapping[Parts, Parts], shapes: Mapping[str, Sequence[int]]
) -> bool:
    """Return whether there is more evidence than that two leaves look alike."""
    for source in sources:
        is_named = any(map(_COPY.fullmatch, _differing(head, source)[0]))
        inside = next((i + 1 for i, part in enumerate(source) if part in PARAMETERS), 0)
        is_part = len(source) > max(inside, 1) if inside else not source
        if is_named and not (inside and head[:inside] == source[:inside]):
            continue
        if is_part or head[:inside] == source[:inside]:
            below = [path for path in map(split_path, shapes) if path[: len(source)] == source]
            mirrored = {path[len(head) :] for path in leaves}
            if len(mirrored) < 2 or any(path[len(source) :] not in mirrored for path in below):
                return False
    return True


def _differing(head: Parts, other: Parts) -> tuple[Parts, Parts]:
    """Remove from two path beginnings the parts that they share."""
    same = next((i for i, (a, b) in enumerate(zip(head, other, strict=False)) if a != b), min(len(head), len(other)))
    return head[same:], other[same:]


def _grouped(pairs: Mapping[tuple[Parts, tuple[Parts, ...]], Mapping[Parts, Parts]]) -> list[Copies]:
    """Group pairs by subtree: below the first name that differs, or further down if the sources differ."""
    groups: dict[tuple[Parts, tuple[Parts, ...]], list[Parts]] = collections.defaultdict(list)
    for head, sources in pairs:
        same = len(head) - len(_differing(head, sources[0])[0])
        groups[head[: same + 1], sources].append(head)
    copies = []
    for (below, sources), heads in groups.items():
        if sum(other == below for other, _ in groups) > 1:
            below = _common(heads)
        leaves = {join_parts(a): join_parts(b) for head in heads for a, b in pairs[head, sources].items()}
        copies.append(Copies(join_parts(below), tuple(join_parts(source) for source in sources), leaves))
    return copies


def _common(heads: Iterable[Parts]) -> Parts:
    first, *rest = heads
    for other in rest:
        first = first[: len(first) - len(_differing(first, other)[0])]
    return first
