"""Storage: where a leaf is kept between its uses. In the device's memory, in the host's, or nowhere at all.

It says nothing of how a leaf is split, so it joins whatever other rules say of that.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem

Stored = Literal["", "device", "host", "recomputed"]
"""Where a leaf is kept between its uses; empty where no rule says, which is in the device's memory."""


@dataclass(frozen=True)
class Storage:
    """Keep matching leaves in some memory, or recompute them; see `keep`, `recompute` and `on_host`.

    Attributes:
        stored: where.
        spec: how they are split, where the same rule says that; None leaves it to other rules.
    """

    stored: Literal["device", "host", "recomputed"]
    spec: P | None = None

    def __add__(self, other: object) -> Storage:
        """The same, of leaves that are split as a spec says."""
        if isinstance(other, P) and self.spec is None:
            return dataclasses.replace(self, spec=other)
        fix = 'add one spec, as outlay.on_host() + P("data"), or say how leaves are split in a rule of its own'
        what = f"{other!r} cannot be added to {self}"
        raise LayoutError("this placement cannot be used:", [Problem("not a placement", str(self), what, fix)])

    def __str__(self) -> str:
        return _CALLS[self.stored] + ("" if self.spec is None else f" + {self.spec}")


_CALLS = {"device": "keep()", "host": "on_host()", "recomputed": "recompute()"}


def keep() -> Storage:
    """Keep values in the device's memory from the forward to the backward pass, and recompute what no rule speaks of.

    For values that a step names with `outlay.name` or `outlay.constrain`. Once a layout keeps a value, or sends one to
    the host, all else that the backward pass needs of the same stretch of the model (of each turn of its loop over
    layers, where the value is in one) is recomputed from what is kept.

    For leaves of the state it is an exception to a later `on_host()`.

    >>> print(outlay.Layout([("attention", outlay.keep()), ("opt_state.**", outlay.on_host() + P("data"))]))
    1. attention     keep()
    2. opt_state.**  on_host() + P('data',)
    """
    return Storage("device")


def recompute() -> Storage:
    """Recompute values in the backward pass from those that they are made of, rather than keep them.

    For values that a step names with `outlay.name` or `outlay.constrain`. What no rule speaks of stays where it was,
    unless another rule says `keep()` or `on_host()`.

    >>> print(outlay.Layout([("layers.*.up", outlay.recompute())]))
    1. layers.*.up  recompute()
    """
    return Storage("recomputed")


def on_host() -> Storage:
    """Keep leaves in the memory of the device's host between their uses, each device's piece in that of its own host.

    Of the state, such as an optimizer's moments: they are fetched at the start of a step, and go back at its end. Of
    values that a step names with `outlay.name` or `outlay.constrain`: from the forward to the backward pass; what the
    layout does not name is then recomputed, as with `keep`.

    Adding a spec says in the same rule how the leaves are split.

    >>> outlay.on_host() + P("data")
    Storage(stored='host', spec=P('data',))
    """
    return Storage("host")
