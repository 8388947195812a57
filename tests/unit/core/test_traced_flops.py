import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.traced_flops import count_flops, traced_work

pytestmark = pytest.mark.newest


def flops(f, *args):
    return count_flops(jax.make_jaxpr(f)(*args))


def of_xla(f, *args):
    """XLA's own count, of the program before the compiler; it counts transcendental functions apart."""
    cost = jax.jit(f).lower(*args).cost_analysis()
    return cost["flops"] + cost.get("transcendentals", 0)


def conv(x, kernel, strides=(2, 2), groups=1):
    return jax.lax.conv_general_dilated(
        x, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def test_a_batched_product_is_two_flops_for_each_pair_that_meets():
    a, b = jnp.ones((3, 4, 8)), jnp.ones((3, 8, 5))
    assert flops(jnp.matmul, a, b) == 2 * 3 * 4 * 8 * 5
    assert flops(jnp.matmul, a.astype(complex), b.astype(complex)) == 8 * 3 * 4 * 8 * 5


def test_a_ragged_product_counts_each_row_once_whatever_its_group():
    sizes = jnp.array([6, 2])
    assert flops(jax.lax.ragged_dot, jnp.ones((8, 4)), jnp.ones((2, 4, 3)), sizes) == 2 * 8 * 4 * 3


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (jnp.matmul, [(4, 8), (8, 2)]),
        (conv, [(4, 9, 9, 3), (3, 3, 3, 8)]),
        (lambda x, k: conv(x, k, (1, 1), groups=8), [(4, 9, 9, 8), (3, 3, 1, 8)]),
        (lambda x: jnp.sum(x, axis=0), [(16, 32)]),
        (lambda x, y: jnp.tanh(x * y + 1.0), [(16, 32), (16, 32)]),
    ],
    ids=["dot", "convolution", "depthwise", "reduction", "elementwise"],
)
def test_simple_programs_count_as_xla_counts_them(f, shapes):
    args = [jnp.ones(shape) for shape in shapes]
    assert flops(f, *args) == pytest.approx(of_xla(f, *args), rel=0.07)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: jax.nn.softmax(x) @ x.T, (32, 256)),
        (jax.grad(lambda x: (conv(x, jnp.ones((3, 3, 3, 4))) ** 2).sum()), (2, 9, 9, 3)),
        (jax.value_and_grad(lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True).sum()), (2, 32, 4, 64)),
    ],
    ids=["softmax", "convolution", "attention"],
)
def test_gradients_and_models_count_nearly_as_xla_counts_them(f, shape):
    x = jnp.ones(shape)
    assert flops(f, x) == pytest.approx(of_xla(f, x), rel=0.05)


def test_scans_count_their_length_and_nest():
    def inner(c, w):
        return c @ w, None

    def outer(c, ws):
        return jax.lax.scan(inner, c, ws)[0], None

    ws = jnp.ones((3, 5, 4, 4))
    assert flops(lambda c, ws: jax.lax.scan(outer, c, ws)[0], jnp.ones((8, 4)), ws) == 3 * 5 * 2 * 8 * 4 * 4


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    work = traced_work(
        jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x[0] < 9, lambda x: x + 1, x))(jnp.ones(8))
    )
    assert work.flops == 9  # eight additions and a comparison
    assert [words.split(":")[0] for words in work.unknown] == ["while"]


def test_a_cond_counts_its_costliest_branch():
    def f(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x * 2, x)

    assert flops(f, jnp.ones((8, 8))) == 2 * 8**3 + 1


def test_what_wraps_a_function_adds_nothing():
    @jax.custom_vjp
    def own(x):
        return x @ x

    own.defvjp(lambda x: (own(x), x), lambda x, g: (g @ x,))

    @jax.custom_jvp
    def own_forward(x):
        return x @ x

    own_forward.defjvp(lambda x, t: (own_forward(*x), t[0]))
    x = jnp.ones((8, 8))
    for f in (own, own_forward, jax.checkpoint(own), jax.jit(lambda x: x @ x), jax.named_call(own, name="own")):
        assert flops(f, x) == 2 * 8**3


def test_remat_computes_the_forward_pass_again():
    def loss(f):
        return lambda w, x: jnp.tanh(f(w, x) @ w).sum()

    w, x = jnp.ones((64, 64)), jnp.ones((8, 64))
    once, product = jax.grad(loss(lambda w, x: jnp.sin(x @ w))), 2 * 8 * 64 * 64
    twice = jax.grad(loss(jax.checkpoint(lambda w, x: jnp.sin(x @ w))))
    assert flops(twice, w, x) - flops(once, w, x) == pytest.approx(product, rel=0.2)


def test_a_region_by_hand_counts_every_device_of_its_axes():
    mesh = outlay.mesh(data=4, model=2)
    x = jnp.ones((8, 8))

    def f(x):
        return jax.lax.psum(x @ x.T, ("data", "model"))

    both = jax.shard_map(f, mesh=mesh, in_specs=P(("data", "model")), out_specs=P())
    assert flops(both, x) == 8 * (2 * 1 * 8 * 1)
    by_data = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    assert flops(by_data, x) == 4 * (2 * 2 * 8 * 2)


def test_integers_and_data_movement_count_nothing():
    def f(x, i):
        moved = jnp.concatenate([x.T, x[i]])[::-1].reshape(-1).astype(jnp.bfloat16)
        return moved, i * 2 + 1, jax.random.key_data(jax.random.split(jax.random.key(0)))

    assert flops(f, jnp.ones((4, 4)), jnp.array([1, 2])) == 0


def test_reductions_windows_and_sorts():
    x = jnp.ones((4, 16))
    assert flops(jnp.cumsum, x) == 64
    assert flops(lambda x: jax.lax.sort(x), x) == 64 * 4
    assert flops(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"), x) == 16 * 4
    assert flops(lambda x: x.at[jnp.array([0, 1])].add(1.0), x) == 32


def test_linear_algebra_by_its_textbook_count_and_what_has_none_is_named():
    n = 30
    eye = jnp.eye(n)
    assert (
        flops(lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), eye) == n**3 / 3 + n**2
    )  # and clears a triangle
    assert flops(lambda a: jax.lax.linalg.lu(a)[0], eye) == pytest.approx(2 * n**3 / 3)
    assert flops(jnp.linalg.solve, eye, jnp.ones(n)) == pytest.approx(2 * n**3 / 3 + 2 * n**2, rel=0.01)
    assert flops(jax.lax.linalg.svd, eye) == 21 * n**3
    assert flops(jax.lax.linalg.qr, eye) == pytest.approx(8 * n**3 / 3, rel=0.1)  # the factor and the reflections
    tridiagonal = jax.make_jaxpr(jax.lax.linalg.tridiagonal_solve)(*jnp.ones((3, n)), eye)
    assert traced_work(tridiagonal).unknown == ("tridiagonal_solve: FLOPs unknown; not counted",)


def test_a_kernel_counts_what_its_author_says():
    def kernel(x, out):
        out[...] = x[...] * 2

    def call(cost):
        return lambda x: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), cost_estimate=cost)(x)

    x = jnp.ones((8, 128))
    assert flops(call(pl.CostEstimate(flops=123, bytes_accessed=1, transcendentals=0)), x) == 123
    work = traced_work(jax.make_jaxpr(call(None))(x))
    assert (work.flops, len(work.unknown)) == (0, 1)
