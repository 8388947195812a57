"""A model that scans over its layers and one that lists them, as a pipeline and on one device, for one step."""

from typing import Any

import jax
import numpy as np
import optax
from tests.contract.listed_models import LISTED
from tests.contract.scanned_models import MODELS, NUM_TOKENS, VOCABULARY

import outlay

NAMES = ("nnx.scan", "plain list")
BATCH = {"tokens": np.random.default_rng(0).integers(0, VOCABULARY, (8, NUM_TOKENS))}


def trained(name: str, *, pipelined: bool) -> dict[str, Any]:
    """Return the loss of two steps, and the sum of each parameter after them."""
    init_params, loss, pattern = (MODELS | LISTED)[name]()
    optimizer = optax.sgd(0.1)
    rules = [(pattern, outlay.layout.pipeline("stage", microbatches=2))] if pipelined else []
    program = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        BATCH,
        layout=outlay.Layout(rules) + outlay.data_parallel(),
        mesh=outlay.mesh(stage=2, data=2) if pipelined else outlay.mesh(data=1, devices=jax.devices()[:1]),
    )
    state, losses = program.init(jax.random.key(0)), []
    for _ in range(2):
        state, metrics = program(state, BATCH)
        losses.append(float(metrics["loss"]))
    sums = jax.jit(lambda state: jax.tree.map(lambda x: (x**2).sum(), state.params))(state)
    return {"losses": losses, "sums": [float(each) for each in jax.tree.leaves(sums)]}
