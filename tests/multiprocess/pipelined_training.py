"""A model that scans over its layers and one that lists them, as a pipeline and on one device, for one step."""

from typing import Any

import jax
import numpy as np
import optax
from tests.contract.listed_models import LISTED
from tests.contract.scanned_models import MODELS, NUM_TOKENS, VOCABULARY

import outlay

WAYS: dict[str, tuple[str, str, str | None]] = {
    "one program": ("nnx.scan", "auto", None),
    "of a list": ("plain list", "auto", None),
    "1f1b": ("plain", "placed", "1f1b"),
    "zb-h1": ("nnx.scan", "placed", "zb-h1"),
}
"""Of each case: the model, the mode and the schedule."""
BATCH = {"tokens": np.random.default_rng(0).integers(0, VOCABULARY, (8, NUM_TOKENS))}


def trained(way: str, *, pipelined: bool) -> dict[str, Any]:
    """Return the loss of two steps, and the sum of each parameter after them."""
    name, mode, schedule = WAYS[way]
    init_params, loss, pattern = (MODELS | LISTED)[name]()
    optimizer = optax.sgd(0.1)
    rules = [(pattern, outlay.layout.pipeline("stage", microbatches=2))] if pipelined else []
    program = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        BATCH,
        layout=outlay.Layout(rules) + outlay.data_parallel(),
        mesh=outlay.mesh(stage=2, data=2) if pipelined else outlay.mesh(data=1, devices=jax.devices()[:1]),
        mode=mode if pipelined else "auto",
        schedule=schedule if pipelined else None,
    )
    state, losses = program.init(jax.random.key(0)), []
    for _ in range(2):
        state, metrics = program(state, BATCH)
        losses.append(float(metrics["loss"]))
    sums = jax.jit(lambda state: jax.tree.map(lambda x: (x**2).sum(), state.params))(state)
    return {"losses": losses, "sums": [float(each) for each in jax.tree.leaves(sums)]}
