import jax.numpy as jnp
import numpy as np
from hypothesis import given as having
from hypothesis import settings
from hypothesis import strategies as st
from tests.unit.models.experts.reference import gated, given, mixture

import outlay

FACTORS = (None, 0.3, 1.0, 1.25, 100.0)


@having(
    groups=st.integers(1, 3),
    tokens=st.integers(1, 12),
    num_experts=st.integers(1, 6),
    top_k=st.integers(1, 6),
    factor=st.sampled_from(FACTORS),
    sigmoid=st.booleans(),
    normalise=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_every_token_goes_through_its_experts(
    groups, tokens, num_experts, top_k, factor, sigmoid, normalise, has_bias, seed
):
    top_k = min(top_k, num_experts)
    params, x, logits = given(groups, tokens, num_experts, seed=seed)
    bias = np.random.default_rng(seed).normal(size=num_experts).astype(np.float32) if has_bias else None
    how = {"top_k": top_k, "normalise": normalise, "scale": 1.5}
    y, routing = outlay.experts(
        gated, params, jnp.array(x), jnp.array(logits),
        gates="sigmoid" if sigmoid else "softmax", bias=None if bias is None else jnp.array(bias),
        capacity_factor=factor, **how,
    )  # fmt: skip
    results, load, dropped = mixture(params, x, logits, sigmoid=sigmoid, bias=bias, factor=factor, **how)
    np.testing.assert_allclose(y, results, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(routing.load, load)
    np.testing.assert_array_equal(routing.dropped, dropped)
