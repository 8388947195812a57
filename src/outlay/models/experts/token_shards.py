"""Over how many devices tokens are split while a step is traced, so that each device orders its own tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

ROWS = "expert_tokens.by_device"
"""The name of tokens that are taken to their experts without a limit, by which a program knows that there are some."""


@dataclass(frozen=True)
class TokenShards:
    """How tokens are split.

    Attributes:
        num: the number of shards.
        split: split dim 0 of arrays over the devices.
    """

    num: int
    split: Callable[[Any], Any]


current_shards: ContextVar[Callable[[], TokenShards] | None] = ContextVar("outlay_token_shards", default=None)
"""How tokens are split while a step is traced; None outside of a program on several devices."""


def token_shards() -> TokenShards:
    """Return how tokens are split here; one shard outside of a program on several devices."""
    shards = current_shards.get()
    return TokenShards(1, lambda tree: tree) if shards is None else shards()
