"""FSDP in mode manual over layers stacked for a loop: one layer is whole at a time, and the numbers stay the same."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

LAYERS, WIDTH = 4, 64
LAYER_BYTES = WIDTH * WIDTH * 4
BATCH = {"x": np.random.default_rng(0).normal(size=(16, WIDTH)).astype(np.float32)}


def layer(h, w):
    return h + jnp.tanh(h @ w)


def scanned(w, h, layer=layer, **how):
    return jax.lax.scan(lambda h, w: (layer(h, w), None), h, w, **how)[0]


def each_sample(w, x):
    return jax.vmap(lambda row: scanned(w, row, jax.checkpoint(layer)))(x)


def in_bfloat16(w, x):
    return scanned(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16), jax.checkpoint(layer)).astype(jnp.float32)


def in_groups(w, x):
    """Blocks of two layers, of which only the first input is kept."""
    return scanned(w.reshape(2, 2, WIDTH, WIDTH), x, jax.checkpoint(lambda h, block: scanned(block, h)))


def numbered(w, x):
    for number in range(LAYERS):
        x = jax.checkpoint(layer)(x, w[number])
    return x


def by_a_counter(w, x):
    return jax.lax.fori_loop(0, LAYERS, lambda i, h: jax.checkpoint(layer)(h, w[i]), x)


def in_a_jitted_function(w, x):
    return jax.jit(functools.partial(scanned, layer=jax.checkpoint(layer)))(w, x)


def along_another_dim(w, x):
    return scanned(jnp.moveaxis(w.transpose(1, 0, 2), 1, 0), x, jax.checkpoint(layer))


def with_a_policy(w, x):
    keep = jax.checkpoint_policies.dots_saveable
    return scanned(w, x, jax.checkpoint(layer, policy=keep))


def backwards_two_at_a_time(w, x):
    return scanned(w, x, jax.checkpoint(layer), reverse=True, unroll=2)


GATHERS = {
    **dict.fromkeys((scanned, each_sample, in_bfloat16, in_a_jitted_function), 2),
    **dict.fromkeys((along_another_dim, with_a_policy, backwards_two_at_a_time), 2),
    by_a_counter: 2,
    in_groups: 3,  # a block is run again before its backward pass
}
"""How often each layer is gathered in a step."""
OTHER_NUMBERS = (in_bfloat16, backwards_two_at_a_time)
"""All but these compute the same numbers, however they are written."""


@functools.cache
def trained(model, mode, accumulate=1):
    """Compiled once for all tests."""

    def loss(params, batch, keys):
        return (model(params["w"], batch["x"]) ** 2).mean(-1), {}

    tx = optax.sgd(0.1)
    init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / 8}, tx)
    layout = outlay.Layout([("params.w", P(None, "data"))]) + outlay.data_parallel()
    step = outlay.train_step(loss, tx, accumulate=accumulate)
    return outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(data=8), mode=mode)


def one_step(program):
    state, metrics = program(program.init(jax.random.key(0)), BATCH)
    return np.asarray(state.params["w"]), float(metrics["loss"])


def without_gathers(model):
    """The same numbers in mode auto, which gathers nothing at its use."""
    return trained(model if model in OTHER_NUMBERS else scanned, "auto")


def moved(program):
    """How often a step moves how many bytes of what a gather gives, by kind."""
    count = Counter()
    for one in outlay.explain(program).collectives:
        if one.kind in ("all-gather", "reduce-scatter"):
            count[one.kind, one.bytes_moved * 8 // 7] += one.count
    return count


# On the newest JAX each loop that it writes into a program of its own; the others are scans like the first.
ON_NEWEST_JAX = {scanned, with_a_policy}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=[] if m in ON_NEWEST_JAX else pytest.mark.any_jax, id=m.__name__) for m in GATHERS],
)
def test_one_layer_is_gathered_at_a_time_and_its_gradient_scattered(model):
    program = trained(model, "manual")
    assert moved(program) == {
        ("all-gather", LAYER_BYTES): GATHERS[model] * LAYERS,
        ("reduce-scatter", LAYER_BYTES): LAYERS,
    }
    (weights, loss), (expected, expected_loss) = one_step(program), one_step(without_gathers(model))
    rtol, atol = (1e-2, 1e-4) if model is in_bfloat16 else (1e-5, 1e-6)
    np.testing.assert_allclose(weights, expected, rtol, atol)
    np.testing.assert_allclose(loss, expected_loss, rtol)


@pytest.mark.any_jax
def test_layers_taken_from_the_stack_one_by_one_are_gathered_one_by_one():
    program = trained(numbered, "manual")
    sizes = {size for (kind, size), _ in moved(program).items()}
    assert sizes == {LAYER_BYTES}
    np.testing.assert_allclose(one_step(program)[0], one_step(without_gathers(numbered))[0], 1e-5, 1e-6)


def test_the_whole_stack_is_never_held():
    """Neither where layers are recomputed nor where what they need is kept: that is activations, not weights."""
    stack = LAYERS * LAYER_BYTES
    for model in (scanned, in_bfloat16):
        assert outlay.explain(trained(model, "manual")).memory.temporaries < stack


@pytest.mark.thorough  # as without microbatches above
@pytest.mark.any_jax
def test_microbatches_gather_layer_by_layer_too():
    program = trained(in_bfloat16, "manual", accumulate=2)
    assert moved(program)["all-gather", LAYER_BYTES] == 2 * 2 * LAYERS
    np.testing.assert_allclose(one_step(program)[0], one_step(trained(in_bfloat16, "auto"))[0], 1e-2, 1e-4)


@pytest.mark.thorough  # layers are gathered above
@pytest.mark.any_jax
def test_a_parameter_that_every_turn_uses_is_gathered_once():
    """As a recurrent network's: not in every turn."""

    def recurrent(w, x):
        return jax.lax.scan(lambda h, x: (layer(h + x, w[0]) @ w[1], None), x, jnp.stack([x] * 5))[0]

    program = trained(recurrent, "manual")
    gathers = {key: count for key, count in moved(program).items() if key[0] == "all-gather"}
    assert sum(gathers.values()) == 1
    np.testing.assert_allclose(one_step(program)[0], one_step(trained(recurrent, "auto"))[0], 1e-5, 1e-5)
