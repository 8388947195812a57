"""Results, loads and drops are those of a loop over tokens; gradients those of all experts on all tokens."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.experts.loop_over_tokens import gated, mixture

import outlay
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.work.compiled import compiled_work
from outlay.core.error_types import ProgramError

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

GROUPS, TOKENS, WIDTH, HIDDEN = 2, 7, 4, 3
WAYS = {
    "no limit": {"num_experts": 5, "top_k": 2},
    "some are dropped": {"num_experts": 3, "top_k": 2, "factor": 1.0, "sigmoid": True, "scale": 2.5},
    "a bias chooses": {"num_experts": 4, "top_k": 3, "bias": (0.25, -0.5, 0.0, 0.5), "sigmoid": True},
    "no limit, one expert": {"num_experts": 3, "top_k": 1, "normalise": False},
    "few fit": {"num_experts": 4, "top_k": 2, "factor": 0.3},
    "all fit": {"num_experts": 4, "top_k": 4, "factor": 4.0},
}


def params_of(num_experts, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {name: rng.normal(size=(num_experts, *shape)).astype(np.float32) for name, shape in shapes.items()}


def run(params, x, logits, *, top_k, sigmoid=False, bias=None, factor=None, num_experts=None, **other):
    other |= {"gates": "sigmoid" if sigmoid else "softmax", "capacity_factor": factor}
    bias = None if bias is None else jnp.array(bias, jnp.float32)
    return outlay.experts(gated, params, x, logits, top_k=top_k, bias=bias, **other)


@functools.cache
def compiled(way):
    """Compiled once: only numbers differ from example to example."""
    return jax.jit(functools.partial(run, **WAYS[way]))


@pytest.mark.some_cases(3, newest=0)
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_token_goes_through_its_experts(way, data):
    """Logits are few small numbers, so that many are equal: of these, the first expert is the better one."""
    how = WAYS[way]
    size = GROUPS * TOKENS * how["num_experts"]
    numbers = data.draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
    logits = np.array(numbers, np.float32).reshape(GROUPS, TOKENS, -1)
    x = np.random.default_rng(size).normal(size=(GROUPS, TOKENS, WIDTH)).astype(np.float32)
    params = params_of(how["num_experts"])

    y, routing = compiled(way)(params, x, logits)

    results, load, dropped = mixture(params, x, logits, **how)
    np.testing.assert_allclose(y, results, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(routing.load, load)
    np.testing.assert_array_equal(routing.dropped, dropped)


def dense(params, x, logits, top_k):
    """All experts on all tokens, in plain JAX."""
    scores = jax.nn.softmax(logits)
    order = jnp.argsort(jnp.argsort(-scores, axis=-1, stable=True), axis=-1)
    chosen = order < top_k
    weights = jnp.where(chosen, scores, 0.0)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    results = jax.vmap(gated, in_axes=(0, None))(params, x)
    return jnp.einsum("gte,egtd->gtd", weights, results)


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.parametrize("factor", [None, 100.0])
def test_gradients_are_those_of_all_experts_on_all_tokens(factor):
    rng = np.random.default_rng(1)
    params, given = params_of(4), [rng.normal(size=(GROUPS, TOKENS, n)).astype(np.float32) for n in (WIDTH, 4)]
    shared = jnp.float32(0.5)

    def sparse(params, x, logits, shared):
        # The function closes over a value that is trained too.
        return outlay.experts(lambda p, t: shared * gated(p, t), params, x, logits, capacity_factor=factor)[0]

    def weighed(function, *args):
        return (function(*args) * jnp.cos(jnp.arange(GROUPS * TOKENS * WIDTH).reshape(GROUPS, TOKENS, WIDTH))).sum()

    def other(params, x, logits, shared):
        return shared * dense(params, x, logits, 2)

    left, right = (
        jax.jit(jax.value_and_grad(functools.partial(weighed, each), argnums=(0, 1, 2, 3)))(params, *given, shared)
        for each in (sparse, other)
    )
    for got, expected in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize("factor", [None, 2.0])
def test_an_expert_that_divides_by_the_length_of_a_token_sees_no_zeros(factor):
    """Slots that no token takes hold tokens: of zeros, the gradient would be NaN."""

    def expert(params, tokens):
        return tokens / jnp.sqrt((tokens**2).sum(axis=-1, keepdims=True)) @ params

    def loss(params, x):
        return (outlay.experts(expert, params, x, x[:, :3], top_k=1, capacity_factor=factor)[0] ** 2).sum()

    x = jax.random.normal(jax.random.key(0), (5, 4))
    grads = jax.grad(loss, argnums=(0, 1))(jnp.ones((3, 4, 4)), x)
    assert all(bool(jnp.isfinite(each).all()) for each in jax.tree.leaves(grads))


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize("factor", [None, 1.25])
def test_64_experts_cost_what_two_cost(factor):
    """Of the FLOPs of a training step and its memory, a third at most of what all experts on all tokens need."""
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), {
        name: jnp.zeros((64, *shape)) for name, shape in
        {"gate": (32, 64), "up": (32, 64), "down": (64, 32)}.items()
    })  # fmt: skip
    x, logits = jax.ShapeDtypeStruct((4, 512, 32), jnp.float32), jax.ShapeDtypeStruct((4, 512, 64), jnp.float32)

    def cost(function):
        step = jax.grad(lambda *args: (function(*args) ** 2).sum(), argnums=(0, 1, 2))
        done = jax.jit(step).lower(params, x, logits).compile()
        flops = sum(compiled_work(parse_hlo(done.as_text())).flops_by_dtype.values())
        return flops, done.memory_analysis().temp_size_in_bytes

    few = cost(lambda params, x, logits: outlay.experts(gated, params, x, logits, capacity_factor=factor)[0])
    everything = cost(lambda params, x, logits: dense(params, x, logits, 2))
    assert 3 * few[0] < everything[0]
    assert 3 * few[1] < everything[1]


def test_what_does_not_fit_is_all_named():
    x, logits, params = jnp.ones((2, 6, 4)), jnp.ones((2, 6, 3)), params_of(3)
    expert = outlay.experts
    with pytest.raises(ProgramError, match=r"params.up is .5, 4, 3., and the router chooses among 3 experts") as error:
        expert(gated, {**params, "up": jnp.ones((5, 4, 3))}, x, logits, bias=jnp.ones(2))
    assert "make its dim 0 3, or the last dim of router 5" in str(error.value)
    assert "bias is (2,): make it (3,)" in str(error.value)
    with pytest.raises(ProgramError, match=r"router is a kernel .4, 3., not the logits of each token: pass x @ router"):
        expert(gated, params, x, jnp.ones((4, 3)))
    with pytest.raises(ProgramError, match=r"router is .2, 5, 3.: make it the logits of each token, .2, 6. and then"):
        expert(gated, params, x, jnp.ones((2, 5, 3)))
    with pytest.raises(ProgramError, match="top_k=4: a token chooses from 1 to all 3 experts") as error:
        expert(gated, params, x, logits, top_k=4, groups=5, gates="softmx")
    assert "groups=5 does not divide 12 tokens" in str(error.value)
    assert "there are no gates 'softmx': did you mean 'softmax'?" in str(error.value)
    with pytest.raises(ProgramError, match="capacity_factor=0: make it more than 0"):
        expert(gated, params, x, logits, capacity_factor=0)
    with pytest.raises(ProgramError, match=r"gives 3 experts 2 of 6 tokens each, so at least 50.0 % of 12 choices"):
        expert(gated, params, x, logits, capacity_factor=0.5, max_dropped=0.1)
    with pytest.raises(ProgramError, match=r"returns of shape \(3,\), float32 for N = 8"):
        expert(lambda p, t: p["gate"][0], params, x, logits)


def test_what_is_no_array_is_told_by_its_argument():
    x, logits, params = jnp.ones((2, 6, 4)), jnp.ones((2, 6, 3)), params_of(3)
    with pytest.raises(ProgramError, match="the function of one expert, and this is a dict") as error:
        outlay.experts(params, gated, x, lambda x: x)
    assert "router is a function: give the logits of each token" in str(error.value)
    each = [jax.tree.map(lambda stack, number=number: stack[number], params) for number in range(3)]
    with pytest.raises(ProgramError, match="params is a list of 3 experts: stack them"):
        outlay.experts(gated, each, x, logits)


@pytest.mark.parametrize("factor", [None, 1.0])
def test_experts_are_stacked_modules_with_settings(factor):
    def make(key):
        return eqx.nn.MLP(4, 4, 5, 1, activation=jax.nn.gelu, key=key)

    stacked = eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), 3))
    x, logits = (jax.random.normal(jax.random.key(number), (2, 6, size)) for number, size in ((1, 4), (2, 3)))

    def alone(arrays, tokens):
        (up, bias), (down, out) = arrays
        return jax.nn.gelu(tokens @ up.T + bias[None]) @ down.T + out[None]

    arrays = [(layer.weight, layer.bias) for layer in stacked.layers]
    y, _ = outlay.experts(lambda one, tokens: jax.vmap(one)(tokens), stacked, x, logits, capacity_factor=factor)
    np.testing.assert_allclose(y, outlay.experts(alone, arrays, x, logits, capacity_factor=factor)[0], rtol=1e-5)
