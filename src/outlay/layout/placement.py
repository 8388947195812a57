"""Placements: what a rule can say about the leaves it matches.

* a `PartitionSpec` claims mesh axes for dims; `None` leaves a dim free for later rules;
* `replicate()` closes every dim: the leaf stays whole, whatever later rules say;
* `on(devices)` puts whole leaves on some devices of the mesh;
* `follow(source)` takes the placement of the leaf it mirrors, as optimizer moments mirror parameters;
* `keep()`, `recompute()` and `on_host()` say in which memory a leaf is kept (see `storage`);
* a *policy*, a pure function of a `LeafView`, chooses a spec leaf by leaf and says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.layout.storage import Storage

Dims = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dim of a leaf, one tuple a dim, empty for a whole dim."""


@dataclass(frozen=True)
class Replicate:
    """Keep the leaf whole on every device; see `replicate`."""

    def __str__(self) -> str:
        return "replicate()"


@dataclass(frozen=True)
class On:
    """Keep the leaf whole on some devices of the mesh; see `on`."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        odd = [p for p in self.positions if type(p) is not int or self.positions.count(p) > 1]
        if odd or not self.positions:
            what = f"these are no different positions: {self.positions}" if odd else "there is no position"
            problem = Problem("not a placement", str(self), what, "name each position once, as outlay.on([2, 3])")
            raise LayoutError("this placement cannot be used:", [problem])

    def __str__(self) -> str:
        return f"on({', '.join(map(str, self.positions))})"


@dataclass(frozen=True)
class Follow:
    """Take the placement of the leaf that this one mirrors; see `follow`."""

    source: str

    def __str__(self) -> str:
        return f"follow({self.source!r})"


@dataclass(frozen=True)
class LeafView:
    """What a policy sees of a leaf.

    Attributes:
        path: dotted path.
        shape: global shape.
        dtype: name of the dtype.
        free_dims: dims that no earlier rule has claimed.
        free_axes: mesh axes (name to size) that no earlier rule has used on this leaf.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    free_dims: tuple[int, ...]
    free_axes: dict[str, int] = field(hash=False)


@dataclass(frozen=True)
class Choice:
    """A policy's answer: the spec it claims and the reason in words.

    Attributes:
        spec: claims, like any rule's spec; `P()` claims nothing.
        reason: why, for the plan.
        blocked: true when the policy wanted more but earlier rules had taken it.
    """

    spec: P
    reason: str
    blocked: bool = False


class CannotPlace(Exception):
    """Raised by a policy that finds no honest placement for a leaf.

    Attributes:
        what: what does not fit, with the numbers.
        fix: the edit that would make it fit.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


Policy = Callable[[LeafView], "Choice | P"]
Placement = P | Replicate | On | Follow | Storage | Policy


def replicate() -> Replicate:
    """Keep matching leaves whole on every device, and closed to later rules.

    Alone, as `layout + outlay.replicate()`, it holds for every leaf that nothing before it split.

    >>> print(outlay.Layout([("params.embed", P("model"))]) + outlay.replicate())
    1. params.embed  P('model',)
    2. **            replicate()
    """
    return Replicate()


def on(devices: int | Sequence[int]) -> On:
    """Keep matching leaves whole on one device or several, by position in the mesh (0 is the first).

    Raises:
        LayoutError: no position, one that is no whole number, or one given twice.

    >>> outlay.on(2)
    On(positions=(2,))
    """
    return On(tuple(devices) if isinstance(devices, Sequence) else (devices,))


def follow(source: str) -> Follow:
    """Place each matching leaf like the leaf under `source` with the same path ending and shape.

    State under `opt_state` or `optimizer` follows its parameters without being told.

    Args:
        source: the subtree to follow: its path, such as `params`, `gen.params` or `params.critic`.

    Example:
        >>> w = jnp.ones((16, 8))
        >>> state = {"params": {"actor": {"w": w}, "critic": {"w": w}}, "target": {"w": w}}
        >>> rules = [("params.critic.w", P("data")), ("target.**", outlay.follow("params.critic"))]
        >>> plan = (outlay.Layout(rules) + outlay.replicate()).plan(state, outlay.mesh(data=8))
        >>> plan["target.w"].spec, plan["target.w"].reason
        (P('data', None), 'follows params.critic.w')
    """
    return Follow(source)


@functools.lru_cache(maxsize=4096)
def spec_dims(spec: P, num_dims: int) -> Dims:
    """A spec as one tuple of axes a dim, padded to `num_dims`.

    >>> spec_dims(P(None, ("data", "model")), 3)
    ((), ('data', 'model'), ())
    """
    named = tuple(_entry_axes(entry) for entry in spec)
    return named + ((),) * (num_dims - len(named))


def dims_spec(dims: Dims) -> P:
    """The inverse of `spec_dims`: `P()` when no dim is split, else one entry a dim.

    >>> dims_spec((("data",), ())), dims_spec(((), ()))
    (P('data', None), P())
    """
    if not any(dims):
        return P()
    return P(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims))


def spec_text(spec: P, *, quote: str = "'") -> str:
    """A spec as people write it.

    Args:
        spec: the spec.
        quote: the quotes around the names of axes.

    >>> spec_text(P(None, ("data", "model"))), spec_text(P()), spec_text(P("data"), quote='"')
    ("P(None, ('data', 'model'))", 'P()', 'P("data")')
    """
    return ("P(" + ", ".join(repr(entry) for entry in spec) + ")").replace("'", quote)


def _entry_axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
