"""The published notebook's training: batch 128, 784 -> 512 -> 10, dropout 0.1, bfloat16, AdamW, 4 minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.models.classifiers import classifier
from outlay.train.step import init_state, train_step

OPTIMIZER = optax.adamw(1e-3)
init_params, loss = classifier((784, 512, 10), dropout_rate=0.1, dtype=jnp.bfloat16)
LAYOUTS = {
    "dp": outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=2**4) + outlay.data_parallel(),
}


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(42)
    return {
        "image": rng.normal(size=(128, 784)).astype(np.float32),
        "label": rng.integers(0, 10, 128).astype(np.int32),
    }


def program(name, batch):
    step = train_step(loss, OPTIMIZER, accumulate=4)
    init = init_state(init_params, OPTIMIZER)
    return outlay.program(step, init, batch, layout=LAYOUTS[name], mesh=outlay.mesh(data=8))


def test_the_notebooks_model_is_built_as_described(batch):
    plan = program("dp", batch).plan
    params = {leaf.path: (leaf.shape, leaf.dtype) for leaf in plan.state if leaf.path.startswith("params")}
    assert params == {
        "params.layers.0.bias": ((512,), "float32"),
        "params.layers.0.kernel": ((784, 512), "float32"),
        "params.layers.1.bias": ((10,), "float32"),
        "params.layers.1.kernel": ((512, 10), "float32"),
    }
    assert plan["batch.image"].local_shape == (16, 784)


def test_metric_shapes_are_known_without_compiling(batch):
    built = program("dp", batch)
    _, metrics = jax.eval_shape(built.step, built.state_shapes, built.batch_shapes)
    assert {name: (m.shape, str(m.dtype)) for name, m in metrics.items()} == {
        "loss": ((), "float32"),
        "accuracy": ((), "float32"),
    }
    assert "compiled" not in vars(built)
    assert "lowered" not in vars(built)


@pytest.mark.thorough  # test_digits.py learns
@pytest.mark.compiles
def test_sixteen_steps_on_one_batch_learn_it(batch):
    """Under FSDP; that data parallel training computes the same is tested in test_classifier_strategies.py."""
    built = program("fsdp", batch)
    state = built.init(jax.random.key(42))
    for _ in range(16):
        state, metrics = built(state, batch)
    assert float(metrics["accuracy"]) == 1.0
    assert 0.001 < float(metrics["loss"]) < 0.004
