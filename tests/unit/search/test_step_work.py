"""What a traced step computes and moves, counted by hand; and what is traced for a GPU that is only a name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.search.step_work import Sum, step_work
from outlay.search.workload import Workload, workload

X, W = jnp.ones((4, 8)), jnp.ones((8, 8))
BYTES = X.nbytes


def test_what_is_computed_within_its_reader_is_not_moved():
    work = step_work(jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)) + x)(X)).outside
    assert (work.moved.within, work.num_launches) == (2 * BYTES, 1)  # x is read and the sum is written


def test_what_a_product_reads_is_written_first():
    work = step_work(jax.make_jaxpr(lambda x, w: jnp.sin(x) @ w)(X, W)).outside
    assert (work.moved.within, work.products, work.num_products) == (2 * BYTES, 2 * 4 * 8 * 8, 1)


def test_layers_and_the_rest_are_counted_apart_and_loops_multiplied_out():
    def loss(weights, x):
        return jnp.square(jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0] @ W)

    work = step_work(jax.make_jaxpr(loss)(jnp.ones((3, 8, 8)), X), layers={3})
    assert (work.layers.products, work.outside.products) == (3 * 2 * 4 * 8 * 8, 2 * 4 * 8 * 8)


def test_what_goes_between_layers_is_told_apart_from_what_is_within():
    jaxpr = jax.make_jaxpr(lambda x, w: jnp.sin(jnp.sin(x) @ w))(X, jnp.ones((8, 2)))
    moved = step_work(jaxpr, shapes={X.shape}).outside.moved
    assert (moved.between, moved.within) == (2 * BYTES, 2 * 4 * 2 * 4)


def test_products_that_are_added_up_are_one_sum():
    """Queries and keys of one input: their gradients of it are added up before devices add up their parts."""

    def loss(weights, x):
        return (jnp.sin(x @ weights[0]) * jnp.cos(x @ weights[1])).sum()

    weights = (jnp.ones((8, 3)), jnp.ones((8, 3)))
    sums = step_work(jax.make_jaxpr(jax.grad(loss, argnums=1))(weights, X), {(8, 3)}).outside.sums
    forward, backward = Sum(frozenset([((8, 3), (0,))]), 4 * 3 * 4), Sum(frozenset([((8, 3), (1,))]), BYTES)
    assert sums == {forward: 2, backward: 1}


HEADS, DIM, TOKENS = 2, 16, 1024


def attending(target: Target | None) -> Workload:
    def loss(params, batch, keys):
        heads = (batch["x"] @ params["w"]).reshape(*batch["x"].shape[:2], HEADS, DIM)
        return outlay.attention(heads, heads, heads, causal=True).mean((1, 2, 3)), {}

    optimizer = optax.sgd(0.1)
    return workload(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: {"w": jnp.ones((HEADS * DIM, HEADS * DIM), jnp.bfloat16)}, optimizer),
        {"x": np.zeros((2, TOKENS, HEADS * DIM), jnp.bfloat16)},
        MeshSpec.parse("data=2"),
        target=target,
    )


@pytest.fixture(scope="module")
def by_blocks() -> Workload:
    return attending(None)


def test_a_gpu_that_is_only_a_name_has_its_kernel_in_the_trace(by_blocks):
    with_kernel = attending(Target.parse("h100:1x2"))
    assert by_blocks.step.outside.kernels == 0
    seen = TOKENS * (TOKENS + 1) / 2
    assert with_kernel.step.outside.kernels == 2 * (2 + 5) * 2 * HEADS * seen * DIM
    # Scores of blocks are written and read where there is no kernel.
    assert with_kernel.step.outside.moved.within < by_blocks.step.outside.moved.within / 10
    assert with_kernel.layers.outside.within < by_blocks.layers.outside.within / 4


def test_a_gpu_without_a_kernel_is_traced_block_by_block(by_blocks):
    old = attending(Target.parse("v100-16gb:1x2"))
    assert old.step.outside.kernels == 0
    assert old.step.outside.products == by_blocks.step.outside.products
