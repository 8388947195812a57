import jax
import jax.numpy as jnp

from outlay.search.liveness import layer_memory, live_bytes
from outlay.search.workload import product_dtype, scan_lengths

X = jnp.ones((4, 8))  # 128 bytes


def of(function, *args, whole=()):
    return live_bytes(jax.make_jaxpr(function)(*args), whole)


def test_a_value_is_held_until_its_last_use():
    def long(x):
        early = jnp.sin(x)
        later = jnp.cos(jnp.cos(jnp.cos(x)))
        return early + later

    # `early`, and of the chain the one that is read and the one that is made
    assert of(long, X) == 3 * 128


def test_what_a_loop_stacks_is_held_after_it():
    def stacked(x):
        return jax.lax.scan(lambda carry, _: (carry, jnp.sin(carry)), x, length=5)[1].sum()

    assert of(stacked, X) == 5 * 128 + 4  # and the sum of it


def test_what_a_jitted_part_holds_inside_counts():
    assert of(jax.jit(lambda x: (x[:, :, None] * x[:, None]).sum()), X) >= 4 * 8 * 8 * 4


def test_shapes_that_are_left_out_count_nothing():
    assert of(lambda x: jnp.sin(x).sum(), X, whole={(4, 8)}) == 4


def test_recomputing_layers_holds_less():
    def layer(x, w):
        return jnp.tanh(jnp.tanh(jnp.tanh(x @ w))), None

    def loss(layer):
        return lambda w: jax.lax.scan(layer, jnp.ones((32, 8)), w)[0].sum()

    weights = jnp.ones((6, 8, 8))
    stored, recomputed = (of(jax.grad(loss(each)), weights) for each in (layer, jax.checkpoint(layer)))
    assert recomputed < stored / 2


def test_tokens_at_their_experts_have_the_features_of_what_goes_between_layers():
    """Tensor parallelism splits hidden features, not these: so much more of a step with experts is held."""

    def layer(x, w):
        tokens = x[:, :, None] * jnp.arange(1.0, 4.0)[None, None, :, None]  # (samples, tokens, experts, features)
        return jnp.tanh(tokens @ w).sum((2, 3))[..., None] * x, None

    def loss(w):
        return jax.lax.scan(layer, jnp.ones((2, 5, 8)), w)[0].sum()

    weights = jnp.ones((6, 8, 16))
    held = layer_memory(jax.make_jaxpr(jax.grad(loss))(weights), {(6, 8, 16), (8, 16)}, {6}).residuals
    carried, tokens, hidden = 6 * 2 * 5 * 8 * 4, 6 * 2 * 5 * 3 * 8 * 4, 6 * 2 * 5 * 3 * 16 * 4
    assert held.between >= carried + tokens
    assert held.within >= hidden


def test_loops_are_found_at_any_depth():
    def nested(x):
        return jax.lax.scan(lambda c, _: (jax.lax.scan(lambda d, _: (d, None), c, length=3)[0], None), x, length=7)[0]

    assert scan_lengths(jax.make_jaxpr(jax.jit(nested))(X)) == {3, 7}


def test_without_products_there_is_no_dtype_of_them():
    assert product_dtype(jax.make_jaxpr(jnp.sin)(X)) is None
