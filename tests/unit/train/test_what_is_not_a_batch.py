"""Loaders, generators and lists that people pass where one batch or a tree of examples is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay

X = np.ones((16, 8), np.float32)
MESH, LAYOUT = "data=8", outlay.data_parallel()


class Loader:
    """Yields batches, as PyTorch's DataLoader does."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Any]:
        return iter([X, X])


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, (8, 8))}


@pytest.mark.parametrize("make", [Loader, lambda: (x for x in [X])], ids=["loader", "generator"])
def test_what_yields_batches_is_no_batch(make: Callable[[], Any]) -> None:
    with pytest.raises(outlay.errors.ProgramError, match=r"which yields batches\n  fix: give one .*next\(iter\("):
        outlay.program(lambda s, x: (s, {}), init, make(), layout=LAYOUT, mesh=MESH)


def test_a_list_of_examples_that_are_arrays_is_told_to_be_stacked() -> None:
    with pytest.raises(outlay.errors.ProgramError, match=r"a tree, here of 40 arrays; .* np\.stack\(examples\)"):
        outlay.TrainData([X[0]] * 40, batch_size=16)


def test_lookahead_is_told_what_init_makes() -> None:
    optimizer = optax.lookahead(optax.sgd(0.1), 5, 0.5)

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        return jnp.mean((batch @ params["w"]) ** 2, axis=1), {}

    step, made = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
    with pytest.raises(outlay.errors.ProgramError, match=r"two copies .*\n  fix: .*LookaheadParams.init_synced"):
        outlay.program(step, made, X, layout=LAYOUT, mesh=MESH)
