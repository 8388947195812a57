"""What is certain of a trace: only results that no compiler can find to be an argument count as computed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.analysis.verify.static.computed_results import computed_results

PARAMS = {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))}


def updated(optimizer, wrap=lambda step: step):
    def step(params, state, x):
        grads = jax.grad(lambda params: jnp.sum(jnp.tanh(x @ params["kernel"] + params["bias"][None])))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates)

    return computed_results(jax.make_jaxpr(wrap(step))(PARAMS, optimizer.init(PARAMS), jnp.ones((4, 3))))


def frozen_bias():
    parts = {"trained": optax.sgd(0.1, momentum=0.9), "frozen": optax.set_to_zero()}
    return optax.multi_transform(parts, {"bias": "frozen", "kernel": "trained"})


@pytest.mark.parametrize("wrap", [lambda step: step, jax.jit])
def test_an_optimizer_computes_what_it_does_not_freeze(wrap):
    assert updated(optax.adamw(1e-3), wrap) == [True, True]
    assert updated(frozen_bias(), wrap) == [False, True]


def test_what_may_be_zero_may_vanish():
    mask = np.zeros(2, np.float32)

    def step(p, g):
        return p + mask * g, p + 0 * g, jnp.where(np.zeros(2, bool), p + g, p), p + 0.5 * g, p

    one = jnp.ones(2)
    assert computed_results(jax.make_jaxpr(step)(one, one)) == [False, False, False, True, False]


def test_a_long_trace_is_no_deep_recursion():
    def step(p, g):
        for _ in range(3000):
            g = jnp.sin(g)
        return p + g

    assert computed_results(jax.make_jaxpr(step)(1.0, 1.0)) == [True]


def test_what_goes_with_numbers_goes_not_with_a_proof_without_them():
    program = outlay.program(
        lambda state, batch: (state - batch.mean(), {}),
        lambda key: jnp.ones(8),
        np.ones((16, 2), np.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )
    with pytest.raises(outlay.errors.ProgramError, match=r"takes no steps, against\n  fix: outlay.verify\(program, "):
        outlay.verify(program, 2, "auto", static=True)
