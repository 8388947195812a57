"""Placements: what a rule can say about the leaves it matches.

* a `PartitionSpec` claims mesh axes for dims; `None` leaves a dim free for later rules;
* `replicate()` closes every dim: the leaf stays whole, whatever later rules say;
* `on(devices)` puts whole leaves on some devices of the mesh;
* `follow(source)` takes the placement of the leaf that it mirrors, as optimizer moments mirror parameters;
* `keep()`, `recompute()` and `on_host()` say in which memory a leaf is kept between its uses, and nothing of how it is
  split, which other rules decide;
* a *policy*, a pure function of a `LeafView`, chooses a spec leaf by leaf and says why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.one_line import OneLine
from outlay.core.paths import split_path
from outlay.core.public_names import called_as

Dims = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dim of a leaf, one tuple per dim, empty for an unsplit dim."""


Stored = Literal["", "device", "host", "recomputed"]
"""Where a leaf is kept between its uses; empty if no rule says so, which means in the device's memory."""


@dataclass(frozen=True)
class Replicate:
    """A full copy of the leaf on every device; see `replicate`."""

    def __str__(self) -> str:
        return "replicate()"


@dataclass(frozen=True)
class On(OneLine):
    """A full copy of the leaf on some devices of the mesh; see `on`."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        # Not `isinstance`: True is an int and no position.
        odd = [p for p in self.positions if type(p) is not int or self.positions.count(p) > 1]
        if odd or not self.positions:
            what = f"the positions {self.positions} are not distinct whole numbers" if odd else "there is no position"
            problem = Problem(
                "not a placement", str(self), what, "name each position once, as outlay.layout.on([2, 3])"
            )
            raise LayoutError("this placement cannot be used:", [problem])

    def __str__(self) -> str:
        return f"on({', '.join(map(str, self.positions))})"


@dataclass(frozen=True)
class Follow:
    """The placement of the leaf that this one mirrors; see `follow`."""

    source: str

    def __str__(self) -> str:
        return f"follow({self.source!r})"


OPTIMIZER_ROOTS = ("opt_state", "optimizer")
"""State under these names follows its parameters automatically."""


def is_optimizer(path: str) -> bool:
    """Return whether a leaf is optimizer state, by the first part of its path."""
    return split_path(path)[:1] in [(root,) for root in OPTIMIZER_ROOTS]


@dataclass(frozen=True)
class Storage(OneLine):
    """Where matching leaves are stored, or that they are recomputed; see `keep`, `recompute`, `on_host`.

    Attributes:
        stored: where.
        spec: how they are split, if the same rule says so; None leaves it to other rules.
    """

    stored: Literal["device", "host", "recomputed"]
    spec: P | None = None

    def __add__(self, other: object) -> Storage:
        """Add to the storage how leaves are split."""
        if isinstance(other, P) and self.spec is None:
            return dataclasses.replace(self, spec=other)
        fix = 'add one spec, as outlay.layout.on_host() + P("data"), or say how leaves are split in a rule of its own'
        what = f"{other!r} cannot be added to {self}"
        raise LayoutError("this placement cannot be used:", [Problem("not a placement", str(self), what, fix)])

    def __str__(self) -> str:
        return f"{STORAGE_NAMES[self.stored]}()" + ("" if self.spec is None else f" + {spec_text(self.spec)}")


STORAGE_NAMES: Mapping[Stored, str] = {"device": "keep", "host": "on_host", "recomputed": "recompute"}
"""The function that makes each storage; it is also its key in a layout file."""


@dataclass(frozen=True)
class LeafView(OneLine):
    """What a policy knows of a leaf.

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
class Choice(OneLine):
    """A policy's answer: the spec it claims and the reason in words.

    Attributes:
        spec: claims, like any rule's spec; `P()` claims nothing.
        reason: why, for the plan.
        blocked: whether the policy would have split the leaf, but earlier rules had taken the dim or the axis.
    """

    spec: P
    reason: str
    blocked: bool = False


class CannotPlace(Exception):
    """A policy cannot place a leaf in any way that it allows.

    Attributes:
        what: what does not fit, with the numbers.
        fix: the edit that would make it fit.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


def is_of_products(placement: object) -> bool:
    """Return whether a placement says how leaves are multiplied, and nothing of where they live."""
    # By attribute: a layout without such rules does not import them.
    return getattr(placement, "is_of_products", False)


Policy = Callable[[LeafView], "Choice | P"]
Placement = P | Replicate | On | Follow | Storage | Policy


@called_as('("params.bias", outlay.replicate()) for leaves by name, outlay.replicate() for all others')
def replicate() -> Replicate:
    """Replicate matching leaves on every device, and close them to later rules.

    Alone, as `layout + outlay.replicate()`, it applies to every leaf that nothing before it split.

    >>> print(outlay.Layout([("params.embed", P("model"))]) + outlay.replicate())
    1. params.embed  P('model')
    2. **            replicate()
    """
    return Replicate()


def on(devices: int | Sequence[int]) -> On:
    """Place matching leaves on one device, or copies on several, by position in the mesh (0 is the first).

    Raises:
        LayoutError: there is no position, one is not a whole number, or one is given twice.

    >>> outlay.layout.on(2)
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
        >>> rules = [("params.critic.w", P("data")), ("target.**", outlay.layout.follow("params.critic"))]
        >>> plan = (outlay.Layout(rules) + outlay.replicate()).plan(state, outlay.mesh(data=8))
        >>> plan["target.w"].spec, plan["target.w"].reason
        (P('data', None), 'follows params.critic.w')
    """
    return Follow(source)


def keep() -> Storage:
    """Keep values in the device's memory from the forward to the backward pass, and recompute what no rule mentions.

    For values that a step names with `outlay.name` or `outlay.constrain`. Once a layout keeps a value, or sends one to
    the host, everything else that the backward pass needs of the same stretch of the model is recomputed from what is
    kept. A stretch is one iteration of a loop over layers, or what lies between loops.

    For leaves of the state it makes an exception to a later `on_host()`.

    >>> rules = [("attention", outlay.layout.keep()), ("opt_state.**", outlay.layout.on_host() + P("data"))]
    >>> print(outlay.Layout(rules))
    1. attention     keep()
    2. opt_state.**  on_host() + P('data')
    """
    return Storage("device")


def recompute() -> Storage:
    """Recompute values in the backward pass instead of keeping them.

    For values that a step names with `outlay.name` or `outlay.constrain`. What no rule mentions stays where it is,
    unless another rule says `keep()` or `on_host()`.

    >>> print(outlay.Layout([("layers.*.up", outlay.layout.recompute())]))
    1. layers.*.up  recompute()
    """
    return Storage("recomputed")


def on_host() -> Storage:
    """Keep leaves in host memory between their uses, each device's piece on its own host.

    Leaves of the state, such as an optimizer's moments, are fetched at the start of a step and return at its end.
    Values that a step names with `outlay.name` or `outlay.constrain` stay there from the forward to the backward pass;
    what the layout does not name is then recomputed, as with `keep`.

    A spec can be added, to say in the same rule how the leaves are split.

    >>> outlay.layout.on_host() + P("data")
    Storage(stored='host', spec=P('data',))
    """
    return Storage("host")


@functools.lru_cache(maxsize=4096)
def spec_dims(spec: P, num_dims: int) -> Dims:
    """Write a spec as one tuple of axes per dim, padded to `num_dims`.

    >>> spec_dims(P(None, ("data", "model")), 3)
    ((), ('data', 'model'), ())
    """
    named = tuple(_entry_axes(entry) for entry in spec)
    return named + ((),) * (num_dims - len(named))


def dims_spec(dims: Dims) -> P:
    """Invert `spec_dims`: return `P()` if no dim is split, else one entry per dim.

    >>> dims_spec((("data",), ())), dims_spec(((), ()))
    (P('data', None), P())
    """
    if not any(dims):
        return P()
    return P(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims))


def spec_text(spec: P, *, quote: str = "'") -> str:
    """Write a spec as code, such as `P(None, 'model')`.

    >>> spec_text(P(None, ("data", "model"))), spec_text(P()), spec_text(P("data"), quote='"')
    ("P(None, ('data', 'model'))", 'P()', 'P("data")')
    """
    return ("P(" + ", ".join(repr(entry) for entry in spec) + ")").replace("'", quote)


def _entry_axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
