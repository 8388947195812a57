"""A small training over all devices of the job, with dropout and Adam; what it does must not depend on processes."""

import jax
import numpy as np
import optax

import outlay
from outlay.models.classifier import classifier
from outlay.train.checkpoint.checkpoints import Checkpoints

OPTIMIZER = optax.adam(1e-2)
init_params, loss = classifier((16, 32, 4), dropout_rate=0.25)
rng = np.random.default_rng(0)
EXAMPLES = {"image": rng.normal(size=(80, 16)).astype(np.float32), "label": rng.integers(0, 4, 80).astype(np.int32)}


def train_on(folder, num_steps, layout=None):
    """Up to `num_steps`, from the newest checkpoint where there is one; losses by step, and where it began."""
    data = outlay.TrainData(EXAMPLES, batch_size=32, seed=1)
    program = outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init_params, OPTIMIZER),
        data[0],
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel() if layout is None else layout,
        mesh=outlay.mesh(data=jax.device_count()),
    )
    checkpoints = Checkpoints(folder)
    start = checkpoints.restore(program) if checkpoints.exist() else None
    done = outlay.fit(
        program,
        data,
        num_steps=num_steps,
        key=jax.random.key(0),
        progress=False,
        checkpoints=checkpoints,
        every=2,
        start=start,
    )
    return {
        "first": start[0] if start else 0,
        "losses": [metrics["loss"] for metrics in done.history],
        "steps": checkpoints.steps(),
    }
