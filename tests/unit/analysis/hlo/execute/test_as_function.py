"""Compiled programs, computed operation by operation, against what the devices themselves compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of

from outlay.analysis.hlo.execute.as_function import unknown_operations
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.run_compiled import Job, compute
from outlay.core.jax_compat import text_with_constants

ROWS = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
SQUARE = ROWS[:, :16] @ ROWS[:, :16].T + 16 * np.eye(16, dtype=np.float32)
ORDER = np.argsort(ROWS[:, 0]).astype(np.int32)


def largest(operand):
    return lax.reduce_window(operand, -jnp.inf, lax.max, (2, 3), (2, 3), ((0, 0), (1, 2)))


def sums(carry, row):
    return carry * 0.5 + row, jnp.cumsum(carry)


FUNCTIONS = {
    "products": lambda x: jnp.einsum("ab,cb->ac", jnp.tanh(x), x) / 3,
    "batched products": lambda x: jnp.einsum("abc,adc->abd", x.reshape(4, 4, 24), x.reshape(4, 4, 24)),
    "reductions": lambda x: (x.max(0), x.argmin(1), x.sum(), jnp.prod(x, 1), (x > 0).any(1)),
    "loops": lambda x: lax.scan(sums, x[0], x),
    "a loop of unknown length": lambda x: lax.while_loop(lambda v: jnp.sum(v**2) > 1.0, lambda v: v * 0.7, x),
    "branches": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "a switch": lambda x: lax.switch(x[0].argmax(), [jnp.sin, jnp.cos, jnp.tan], x),
    "gathers": lambda x: (x[ORDER], jnp.take_along_axis(x, ORDER[:, None] % 24, 1), x[:, ORDER]),
    "positions outside": lambda x: (x.at[ORDER * 2].get(mode="clip"), x.at[ORDER * 2].add(1.0, mode="drop")),
    "scatters": lambda x: (x.at[ORDER // 2].add(x), x.at[ORDER // 2].max(x), x.at[:, 3].set(7.0)),
    "sliding": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (ORDER[0], 1), (4, 5)), (ORDER[1], 22)),
    "pieces": lambda x: jnp.concatenate([x[::2, 3:7], jnp.flip(x, 1)[:8, :4], jnp.pad(x, ((1, 2), (0, 0)))[:8, :4]]),
    "windows": lambda x: (largest(x), jax.grad(lambda x: jnp.sum(largest(x) ** 2))(x)),
    "sorts": lambda x: (jnp.sort(x, 1), jnp.argsort(-x, 0), lax.sort((jnp.round(x), x), num_keys=2)),
    "top": lambda x: lax.top_k(x, 3),
    "a convolution": lambda x: lax.conv_general_dilated(
        x.reshape(2, 8, 24, 1),
        x[:3, :6].reshape(3, 6, 1, 1),
        (2, 1),
        ((1, 1), (2, 3)),
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "random numbers": lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape),
    "types": lambda x: (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16), x.astype(jnp.int8) + 1, x.view(jnp.int32)),
    "transforms": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2).real,
}


def computed(function, array, spec=P()):
    """What the devices compute, and what the compiled text is computed to, each as a list."""
    mesh = mesh_of(data=4, model=2)
    placed = jax.device_put(array, NamedSharding(mesh, spec))
    compiled = jax.jit(function).lower(placed).compile()
    text = text_with_constants(compiled)
    assert unknown_operations(parse_hlo(text)) == ()
    outs = tuple(tuple(at.spec) for at in jax.tree.leaves(compiled.output_shardings))
    with jax.enable_x64(True):
        job = Job(text, (("data", 4), ("model", 2)), (tuple(spec),), outs, ([array],), "float32")
        answer = compute(job)
    assert not answer.differing
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(placed))], answer.exact[0]


def assert_alike(results):
    wants, gots = results
    for want, got in zip(wants, gots, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        tolerance = 1e-2 if want.dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_xla_compiles_means_what_it_computes(name):
    assert_alike(computed(FUNCTIONS[name], ROWS))


def by_hand(function):
    spec = P(("data", "model"))
    return lambda x: jax.shard_map(function, mesh=mesh_of(data=4, model=2), in_specs=spec, out_specs=spec)(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.psum(x, "model") + lax.psum(x, ("data", "model")),
        lambda x: x * lax.pmax(x, "data"),
        lambda x: lax.all_gather(x, "data")[1] + lax.all_gather(x, ("data", "model"))[3],
        lambda x: lax.all_to_all(x.T.reshape(4, 6, 2), "data", 0, 2).reshape(2, -1),
        lambda x: lax.ppermute(x, "data", [(0, 1), (1, 2)]),
        lambda x: jnp.tile(lax.psum_scatter(x, "model", scatter_dimension=0, tiled=True), (2, 1)),
        lambda x: x + lax.axis_index(("data", "model")),
    ],
    ids=["sums", "maxima", "gathers", "exchanges", "a permutation", "scattered sums", "numbers of devices"],
)
def test_collectives_over_each_kind_of_group(function):
    assert_alike(computed(by_hand(function), ROWS, P(("data", "model"))))


def test_a_program_that_xla_partitions():
    def step(x):
        hidden = jax.nn.relu(x @ jnp.ones((24, 8)) - x.mean())
        return hidden.sum(0), x - 0.1 * hidden @ jnp.ones((8, 24))

    assert_alike(computed(step, ROWS, P("data", "model")))


def test_operations_without_a_meaning_are_named_all_at_once():
    def step(x):
        values = jnp.linalg.svd(x, compute_uv=False)
        return jax.pure_callback(lambda values: values * 2, values, values)

    text = jax.jit(step).lower(SQUARE).compile().as_text()
    names = [one.name for one in unknown_operations(parse_hlo(text))]
    assert any("gesdd" in name for name in names)
    assert any("callback" in name for name in names)
    assert all(one.line for one in unknown_operations(parse_hlo(text)))


def test_a_result_that_only_one_device_has_is_seen():
    def step(x):
        return jax.shard_map(
            lambda x: x.sum() + lax.axis_index("data"),
            mesh=mesh_of(data=4, model=2),
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        )(x)

    mesh = mesh_of(data=4, model=2)
    placed = jax.device_put(ROWS, NamedSharding(mesh, P()))
    text = jax.jit(step).lower(placed).compile().as_text()
    job = Job(text, (("data", 4), ("model", 2)), ((),), ((),), ([ROWS],), "float32")
    assert compute(job).differing == {0}
