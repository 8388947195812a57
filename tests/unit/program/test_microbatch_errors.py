"""What is raised while a loss is traced for a microbatch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import LayoutError, Problem

pytestmark = pytest.mark.newest


def test_an_error_of_outlay_at_a_microbatch_is_not_told_as_another() -> None:
    """It says its line and all offenders itself."""

    def init(key: jax.Array) -> Any:
        return {"layers": jax.random.normal(key, (4, 6, 6))}

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        if len(batch) < 8:
            raise LayoutError("of a microbatch:", [Problem("here", "a line", "what", "cure")])
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])[0].sum(-1), {}

    optimizer = optax.sgd(0.1)
    with pytest.raises(LayoutError, match="of a microbatch:"):
        outlay.program(
            outlay.train_step(loss, optimizer),
            outlay.init_state(init, optimizer),
            np.ones((8, 6), np.float32),
            layout=outlay.Layout([("params.layers", outlay.layout.pipeline("stage", microbatches=2))])
            + outlay.data_parallel(),
            mesh=outlay.mesh(stage=2, data=4),
        )
