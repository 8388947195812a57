"""Let a loss see the whole batch where each device has only some of its samples; mode manual fills this in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol


class Spread(Protocol):
    """How a batch is split over devices, while a step is traced for one device's samples.

    Attributes:
        num_devices: the number of devices it is split over.
    """

    num_devices: int

    def is_needed(self, function_is_global: bool) -> bool:
        """Return whether a loss must be computed over the whole batch, because it mixes samples."""
        ...

    def as_one(self, function: Callable[[Any, Any], Any], whole: Any, samples: Any) -> Any:
        """Compute `function(whole, samples)` as one device would from all samples; per-sample results stay split."""
        ...

    def mean(self, tree: Any) -> Any:
        """Return the mean over devices of float arrays; other leaves are equal on all devices already."""
        ...

    def gather(self, tree: Any) -> Any:
        """Return the samples of all devices, in order."""
        ...


Gather = Callable[[Any], Any]

_gather: ContextVar[Gather | None] = ContextVar("outlay_whole_batch", default=None)
_spread: ContextVar[Spread | None] = ContextVar("outlay_spread", default=None)


def whole_batch(tree: Any) -> Any:
    """Return all samples of the batch, inside the loss of a `train_step`, as a contrastive loss needs them.

    In mode manual a loss is given one device's samples. This gathers values computed from them, in the order of the
    batch, and the gradient of each sample goes back to its device. In other modes the loss already sees the whole
    batch, and this does nothing. With `accumulate` or `groups`, "the batch" is the microbatch or the group.

    Args:
        tree: arrays with one entry per sample.

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
    """Return how the batch is split over devices; None if it is not."""
    return _spread.get()


@contextlib.contextmanager
def spreading(spread: Spread | None) -> Iterator[None]:
    """Set how the batch is split, while a region of mode manual is traced."""
    token = _spread.set(spread)
    try:
        with gathering(None if spread is None else spread.gather):
            yield
    finally:
        _spread.reset(token)


@contextlib.contextmanager
def gathering(gather: Gather | None) -> Iterator[None]:
    """Have `whole_batch` call a function; with None it does nothing."""
    token = _gather.set(gather)
    try:
        yield
    finally:
        _gather.reset(token)
