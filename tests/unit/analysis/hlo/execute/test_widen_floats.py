"""Compiled programs with wider floats, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of

from outlay.analysis.verify.as_compiled.run_compiled import Job, compute
from outlay.core.jax_compat import text_with_constants

ROWS = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
KEEP = np.asarray(jax.random.bernoulli(jax.random.key(0), 0.5, ROWS.shape))


def step(rows):
    """What rounds in each operation, draws random numbers out of bits, orders, and spells constants."""
    narrow = rows.astype(jnp.bfloat16)
    dropped = narrow * jax.random.bernoulli(jax.random.key(0), 0.5, rows.shape)
    products = lax.reduce_precision(jnp.tanh(dropped @ narrow.T).astype(jnp.float32), 8, 7)
    return products * 0.1 + rows.sum(), jnp.sort(rows, axis=0)


def by_hand(rows):
    return np.tanh((rows * KEEP) @ rows.T) * np.float64(np.float32(0.1)) + rows.sum(), np.sort(rows, axis=0)


def computed(*, is_wide):
    mesh = mesh_of(data=4, model=2)
    spec = P("data", "model")
    compiled = jax.jit(step).lower(jax.device_put(ROWS, NamedSharding(mesh, spec))).compile()
    outs = tuple(tuple(at.spec) for at in jax.tree.leaves(compiled.output_shardings))
    array = ROWS.astype(np.float64) if is_wide else ROWS
    with jax.enable_x64(True):
        axes = ("data", 4), ("model", 2)
        text = text_with_constants(compiled)
        return compute(Job(text, axes, (tuple(spec),), outs, ([array],), "float32", is_wide=is_wide)).exact[0]


def test_a_program_on_wider_floats_only_means_what_it_says():
    for got, narrow, want in zip(
        computed(is_wide=True), computed(is_wide=False), by_hand(ROWS.astype(np.float64)), strict=True
    ):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
        assert narrow.dtype == np.float32
    assert np.abs(computed(is_wide=False)[0] - by_hand(ROWS.astype(np.float64))[0]).max() > 1e-4
