"""What a loss does with the whole batch, where each device has only some samples of it: mode manual fills this in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol


class Spread(Protocol):
    """How a batch is spread over devices, while a step is traced for each device's samples.

    Attributes:
        num_devices: over how many.
    """

    num_devices: int

    def is_needed(self, function_is_global: bool) -> bool:
        """Whether a loss must be computed as over the whole batch, since it mixes samples."""
        ...

    def as_one(self, function: Callable[[Any, Any], Any], whole: Any, samples: Any) -> Any:
        """`function(whole, samples)` as one device would compute it from all samples; results of samples stay apart."""
        ...

    def mean(self, tree: Any) -> Any:
        """The mean over devices of arrays of floats; what is no float is the same on all of them."""
        ...

    def gather(self, tree: Any) -> Any:
        """The samples of all devices, in their order."""
        ...


Gather = Callable[[Any], Any]

_gather: ContextVar[Gather | None] = ContextVar("outlay_whole_batch", default=None)
_spread: ContextVar[Spread | None] = ContextVar("outlay_spread", default=None)


def whole_batch(tree: Any) -> Any:
    """All samples of the batch, inside the loss of a `train_step`, as for a contrastive loss.

    In mode manual a loss is given each device's samples; this gathers what it computed of them, in the order of the
    batch, and a gradient goes back to the device that each sample is on. Elsewhere the batch is whole, and this does
    nothing. With `accumulate` or `groups` it is the microbatch or the group.

    Args:
        tree: arrays, each with one entry per sample.

    Example:
        >>> import optax
        >>> def loss(params, batch, keys):
        ...     image, text = batch["image"] @ params["image"], batch["text"] @ params["text"]
        ...     scores = image @ outlay.whole_batch(text).T
        ...     return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(image))), {}
        >>> optimizer = optax.sgd(0.1)
        >>> init = outlay.init_state(lambda key: {"image": jnp.eye(4), "text": jnp.eye(4)}, optimizer)
        >>> batch = {"image": np.eye(16, 4, dtype=np.float32), "text": np.eye(16, 4, dtype=np.float32)}
        >>> step, mesh = outlay.train_step(loss, optimizer), outlay.mesh(data=8)
        >>> layout = outlay.data_parallel()
        >>> program = outlay.program(step, init, batch, layout=layout, mesh=mesh, mode="manual")
        >>> outlay.verify(program, batches=[batch] * 2, steps=2).ok
        True
    """
    gather = _gather.get()
    return tree if gather is None else gather(tree)


def current_spread() -> Spread | None:
    """How the batch is spread over devices; None where it is whole."""
    return _spread.get()


@contextlib.contextmanager
def spreading(spread: Spread | None) -> Iterator[None]:
    """Say how the batch is spread while a region of mode manual is traced."""
    token = _spread.set(spread)
    try:
        with gathering(None if spread is None else spread.gather):
            yield
    finally:
        _spread.reset(token)


@contextlib.contextmanager
def gathering(gather: Gather | None) -> Iterator[None]:
    """Let `whole_batch` call a function, or do nothing."""
    token = _gather.set(gather)
    try:
        yield
    finally:
        _gather.reset(token)
