"""What a step says of its attention: that it is one, and of what; the layout of a program says who computes it.

Outside a program, and where no rule speaks of attention, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention, of `outlay.attention` or of a function of JAX.

    Attributes:
        name: the function, such as `attention`.
        query: (B, T, heads, head_dim).
        key: (B, S, kv_heads, head_dim).
        value: like `key`.
        causal: a query attends to no key after itself.
        window: a query attends to this many keys, itself included; None for all.
        segment_ids: (B, T): a query attends only to keys of its own segment.
        scale: the factor of the scores.
        terms: what else is said of the scores, each (B or 1, heads or 1, T or 1, S or 1): where one of bool is False
            the score is hidden, others are added. A query that attends to nothing gets the mean of all values, as
            from a softmax of equal scores.
        not_split: what else it was given, in words; it cannot be computed with its tokens split.
    """

    name: str
    query: Any
    key: Any
    value: Any
    causal: bool
    window: int | None
    segment_ids: Any
    scale: float
    terms: tuple[Any, ...] = ()
    not_split: tuple[str, ...] = ()


Attend = Callable[[AttentionCall], Any]
"""`attend(call)` returns the outputs, or None to leave the call to its function."""

current_attend: ContextVar[Attend | None] = ContextVar("outlay_attention", default=None)
"""How a program computes the calls of attention that are traced; None where it leaves them to their functions."""


def attended(call: AttentionCall) -> Any:
    """Return the outputs of a call as a program computes them; None if it leaves that to the function itself."""
    attend = current_attend.get()
    return None if attend is None else attend(call)
