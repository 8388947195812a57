"""Models that Qwix quantizes keep what it does, and the statistics that it keeps: equal to Qwix alone on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
from flax import linen

import outlay

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.newest,
    pytest.mark.filterwarnings("ignore:'VariableState' was removed:DeprecationWarning"),  # Qwix 0.1.8 asks for it
]

RNG = np.random.default_rng(0)
BATCH = {"x": RNG.normal(size=(16, 32)).astype(np.float32), "y": np.ones((16, 8), np.float32)}
OPTIMIZER = optax.adam(1e-2)


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(8)(linen.relu(linen.Dense(64)(x)))


def quantized(*, is_static):
    rule = qwix.QtRule(
        module_path=".*",
        weight_qtype=jnp.float8_e4m3fn,
        act_qtype=jnp.float8_e4m3fn,
        bwd_qtype=jnp.float8_e5m2,
        act_static_scale=is_static,
    )
    return qwix.quantize_model(Mlp(), qwix.QtProvider([rule]))


@pytest.mark.parametrize("is_static", [False, True])
def test_a_model_in_fp8_trains_as_under_plain_jit(is_static):
    """With scales of today's numbers, and with averages of ranges, a collection of their own (`quant_stats`)."""
    model = quantized(is_static=is_static)

    def init(key):
        collections = dict(model.init(key, BATCH["x"]))
        return collections.pop("params"), collections

    def losses_of(params, statistics, batch):
        out, new = model.apply({"params": params, **statistics}, batch["x"], mutable=["quant_stats"])
        return jnp.mean((out - batch["y"]) ** 2, axis=-1), dict(new)

    def loss(params, statistics, batch, keys):
        losses, new = losses_of(params, statistics, batch)
        return losses, {}, new

    program = outlay.program(
        outlay.train_step(loss, OPTIMIZER, model_state=True),
        outlay.init_state(init, OPTIMIZER, model_state=True),
        BATCH,
        layout=outlay.fsdp("data", min_size=1) + outlay.data_parallel(),
        mesh="data=8",
    )
    state = program.init(jax.random.key(0))

    @jax.jit
    def plain(params, statistics, opt_state):
        def mean(params):
            losses, new = losses_of(params, statistics, BATCH)
            return losses.mean(), new

        (value, new), grads = jax.value_and_grad(mean, has_aux=True)(params)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), new, opt_state, value

    params, statistics = jax.device_get((state.params, state.model_state))
    assert bool(statistics) is is_static
    opt_state = OPTIMIZER.init(params)
    for _ in range(3):
        state, metrics = program(state, BATCH)
        params, statistics, opt_state, value = plain(params, statistics, opt_state)
        # A sum in another order may turn the rounding of single entries.
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-3)
    for got, expected in zip(jax.tree.leaves(state.model_state), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3)
