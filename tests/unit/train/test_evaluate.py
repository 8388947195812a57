import jax
import numpy as np
import pytest
from tests.unit.train import problem

import outlay
from outlay.train.data import eval_batches
from outlay.train.evaluate import evaluate
from outlay.train.step import train_step

pytestmark = pytest.mark.compiles


def test_means_over_an_uneven_set_are_exact_and_without_dropout():
    layout = outlay.fsdp(min_size=16, otherwise="replicate") + outlay.data_parallel()
    step = train_step(problem.loss, problem.OPTIMIZER)
    program = outlay.program(step, problem.init, problem.batch(16), layout=layout, mesh=outlay.mesh(data=8))
    state = program.init(jax.random.key(2))
    examples = problem.batch(37, seed=9)
    found = evaluate(program, state, problem.loss, eval_batches(examples, 16))
    losses, metrics = problem.loss(jax.device_get(state.params), examples, None)
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], metrics["accuracy"].mean(), rtol=1e-6)
    assert not state.params["layers"][0]["kernel"][...].is_deleted()
