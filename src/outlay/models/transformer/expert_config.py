"""The configuration of a transformer whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from outlay.core.suggest import did_you_mean
from outlay.models.experts.routing import Gates
from outlay.models.transformer.config import TransformerConfig


@dataclass(frozen=True)
class ExpertConfig(TransformerConfig):
    """A decoder-only transformer in which each token goes through a few of many feed-forward layers.

    `hidden` is of one expert. Everything else is as in `TransformerConfig`.

    Attributes:
        num_experts: the experts of a layer.
        top_k: the experts of a token.
        gates: how a router's logits become scores; see `outlay.experts`.
        scale: the factor of the weights of a token's experts.
        shared_hidden: the hidden features of one more expert that sees every token; 0 for none.
        capacity_factor: how many times the average an expert takes of each sequence; None for no limit.
        max_dropped: refuse a capacity that drops more than this share of the choices in any case.
        balance: the factor of the balance loss.
        z: the factor of the z loss.

    Raises:
        ValueError: parts do not fit together; the message lists all problems.

    Example:
        >>> config = ExpertConfig(1000, 64, 2, 4, 2, 16, 128, num_experts=8)
        >>> config.num_params, config.num_active_params
        (547136, 252224)
    """

    num_experts: int = 8
    top_k: int = 2
    gates: Gates = "softmax"
    scale: float = 1.0
    shared_hidden: int = 0
    capacity_factor: float | None = None
    max_dropped: float | None = None
    balance: float = 0.01
    z: float = 0.001

    @property
    def has_experts(self) -> bool:
        """Whether feed-forward layers are mixtures of experts."""
        return True

    def _sizes_that_cannot_be(self) -> Iterator[str]:
        yield from super()._sizes_that_cannot_be()
        if self.num_experts < 1:
            yield f"num_experts={self.num_experts}: make it 1 or more"
        elif not 1 <= self.top_k <= self.num_experts:
            yield f"top_k={self.top_k}: a token chooses from 1 to all {self.num_experts} experts"
        if self.shared_hidden < 0:
            yield f"shared_hidden={self.shared_hidden}: make it 1 or more, or 0 for no shared expert"
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            yield f"capacity_factor={self.capacity_factor}: make it more than 0, 1.25 for example, or None for no limit"
        if self.max_dropped is not None and not 0 <= self.max_dropped < 1:
            yield f"max_dropped={self.max_dropped}: it is a share, from 0 to 1"
        if self.adapter_rank:
            yield "adapters are for projections without experts: leave out adapter_rank"

    def _words_that_are_unknown(self) -> Iterator[str]:
        yield from super()._words_that_are_unknown()
        if self.gates not in get_args(Gates):
            yield f"there are no gates {self.gates!r}: {did_you_mean(self.gates, get_args(Gates))}"

    @property
    def num_layer_params(self) -> int:
        """The number of parameters of one layer."""
        return self._with_experts(self.num_experts)

    @property
    def num_active_params(self) -> int:
        """The number of parameters that one token is multiplied with, the embedding's included."""
        idle = self.num_layer_params - self._with_experts(self.top_k)
        return self.num_params - self.num_layers * idle

    def _with_experts(self, num: int) -> int:
        def of_hidden(hidden: int) -> int:
            inward = hidden * (2 if self.gated else 1)
            return self.width * (inward + hidden) + (inward + self.width if self.biases else 0)

        shared = of_hidden(self.shared_hidden) if self.shared_hidden else 0
        router = self.width * self.num_experts
        return super().num_layer_params + (num - 1) * of_hidden(self.hidden) + shared + router
