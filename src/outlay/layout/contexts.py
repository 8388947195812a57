"""Long sequences as placements: the tokens of attention split over devices, which exchange what they must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.public_names import called_as
from outlay.core.suggest import did_you_mean
from outlay.layout.placement import Choice, LeafView

Exchange = Literal["ring", "gather", "all_to_all"]
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)


@dataclass(frozen=True)
class Context:
    """Attention whose tokens are split; see `context`.

    Attributes:
        axis: the mesh axis over which tokens are split.
        exchange: how devices see the keys and values of others; None to choose it for each call by what is sent.
    """

    axis: str
    exchange: Exchange | None = None

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.axis, str) or not self.axis:
            what = f"axis={self.axis!r}; it is the mesh axis over which tokens are split"
            problems.append(Problem("not an axis", "axis", what, 'axis="context"'))
        if self.exchange is not None and self.exchange not in EXCHANGES:
            what = f"exchange={self.exchange!r}"
            fix = f"{did_you_mean(str(self.exchange), EXCHANGES)}, or leave it out"
            problems.append(Problem("unknown exchange", "exchange", what, fix))
        if problems:
            raise LayoutError("this placement cannot be used:", problems)

    @property
    def context_axis(self) -> str:
        """The mesh axis over which tokens are split, by which layouts know a context."""
        return self.axis

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes it uses."""
        return (self.axis,)

    def __call__(self, leaf: LeafView) -> Choice:
        """Claim nothing of a value that another rule names by the same source: this one is about the call."""
        return Choice(P(), f"{self} inside the call")

    def __str__(self) -> str:
        return f"tokens over {self.axis!r}" + (f", exchanged by {self.exchange}" if self.exchange else "")


@called_as('outlay.layout.context("context", "ring")')
def context(axis: str = "context", exchange: Exchange | None = None) -> Context:
    """Compute attention with its tokens split over a mesh axis, exactly, for sequences too long for one device.

    For calls of `outlay.attention` (`@attention`) and of `jax.nn.dot_product_attention` (`@dot_product_attention`); a
    pattern may also name the function or module that makes the call (`@Block.attention`), or its line
    (`@model.py:120`). The model stays as it is. Each device computes the outputs of its own tokens, and memory for
    activations falls with the number of devices. How it sees the keys and values of others:

    * `ring`: they are passed from device to device, while those that are here are attended to. Of a window only
      neighbours come.
    * `gather`: all are gathered at once, and are whole on each device during the call.
    * `all_to_all`: tokens are exchanged for heads. Each device then has all tokens of some heads, and the fused kernel
      of its hardware works on them. Heads have to divide.

    With a causal mask, devices exchange halves of their tokens for the time of the call, so that all have the same
    work. Sources: Liu et al., Ring Attention (arXiv:2310.01889); Jacobs et al., DeepSpeed Ulysses (arXiv:2309.14509).

    Args:
        axis: the mesh axis over which tokens are split; rules for the batch and for other values may name it too.
        exchange: one of these; None takes for each call the one that sends least, as `program.contexts` says.

    Raises:
        LayoutError: the axis is no name, or there is no such exchange.

    Example:
        >>> def step(state, batch):
        ...     return state, outlay.attention(batch, batch, batch, causal=True)
        >>> layout = outlay.Layout([
        ...     ("batch", P("data", "context")), ("@attention", outlay.layout.context("context", "ring"))])
        >>> batch = np.ones((2, 32, 4, 8), np.float32)
        >>> program = outlay.program(step, lambda key: jnp.zeros(()), batch, layout=layout + outlay.replicate(),
        ...     mesh=outlay.mesh(data=2, context=4))
        >>> program.contexts
        '@attention at ...: a ring over context=4, 3 hops, halves exchanged'
    """
    return Context(axis, exchange)
