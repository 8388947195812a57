"""What the user wrote, beside what Outlay makes of it: a judge takes the one and is kept apart from the other.

`outlay.train_step` and `outlay.init_state` make functions from a loss and an optimizer. Whoever asks what these mean
(`outlay.verify`) takes loss and optimizer themselves, in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

Observer = Callable[[Any], None]


@dataclass(frozen=True)
class AsWritten:
    """What a program was made from.

    Attributes:
        step: the user's step.
        init: the user's init.
        parts: the names of the parts in which both take and return the state; empty if it is one tree.
    """

    step: Callable[..., Any]
    init: Callable[[Any], Any]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossAsWritten:
    """The arguments of `outlay.train_step`, which says what they mean."""

    loss: Callable[..., Any]
    optimizer: Any
    accumulate: int = 1
    model_state: bool = False
    groups: int | None = None
    reduction: str | None = None
    metrics: Collection[str] = ()
    per_example_gradients: bool = False


@dataclass(frozen=True)
class InitAsWritten:
    """The arguments of `outlay.init_state`, and the class of the state that it makes."""

    init_params: Callable[[Any], Any]
    optimizer: Any
    model_state: bool
    state_type: Callable[..., Any]


class Judge(Protocol):
    """Computes what a loss and an optimizer mean, instead of what Outlay makes of them."""

    def init(self, written: InitAsWritten, key: Any) -> Any:
        """Return the state before the first step."""
        ...

    def step(self, written: LossAsWritten, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return the new state and the metrics of a step."""
        ...


current_judge: ContextVar[Judge | None] = ContextVar("outlay_judge", default=None)
"""The judge in the place of what Outlay makes of a loss, while a function is traced; usually none."""

current_observer: ContextVar[Observer | None] = ContextVar("outlay_gradients", default=None)
"""The observer of the gradients that an optimizer is given, while a function is traced; usually none."""
