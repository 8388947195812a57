"""Gradients of layers are added to the sums so far where the backward loop makes them: the same bits, in one stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.train.added_in_loops import added
from outlay.train.gradients import sum_over_microbatches

LAYERS, WIDTH = 5, 8


def layer(x, params):
    return jnp.tanh(x @ params["kernel"].astype(jnp.bfloat16) + params["bias"].astype(jnp.bfloat16)[None]), None


def loss(params, batch, wrapped=lambda function: function):
    x, _ = wrapped(jax.lax.scan)(jax.checkpoint(layer), batch.astype(jnp.bfloat16), params["layers"])
    return (x.astype(jnp.float32) @ params["head"]).mean()


def parameters(num=LAYERS, width=WIDTH):
    keys = jax.random.split(jax.random.key(0), 3)
    layers = {"kernel": jax.random.normal(keys[0], (num, width, width)), "bias": jnp.zeros((num, width))}
    return {"layers": layers, "head": jax.random.normal(keys[1], (width, 4))}


def num_stacks(jaxpr):
    """Count the additions of whole stacks of kernels in a program."""
    return str(jaxpr).count(f"f32[{LAYERS},{WIDTH},{WIDTH}] = add")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("is_called", [False, True], ids=["plain", "in a jitted function"])
def test_the_sums_are_the_same_bits_and_the_loop_carries_them(is_called):
    params, batch = parameters(), jax.random.normal(jax.random.key(1), (4, WIDTH))
    so_far = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(2), leaf.shape), params)
    of_loss = jax.jit(loss) if is_called else loss

    def gradients(batch):
        return jax.grad(of_loss)(params, batch), jnp.sum(batch)

    def plainly(so_far, batch):
        grads, total = gradients(batch)
        return jax.tree.map(jnp.add, so_far, grads), total

    def in_loops(so_far, batch):
        return added(gradients, so_far, batch)

    jax.tree.map(np.testing.assert_array_equal, *(jax.jit(each)(so_far, batch) for each in (plainly, in_loops)))
    assert num_stacks(jax.make_jaxpr(plainly)(so_far, batch)) == 1
    assert num_stacks(jax.make_jaxpr(in_loops)(so_far, batch)) == 0


def test_what_is_read_elsewhere_or_rearranged_is_added_behind_the_loop():
    xs = jnp.arange(1.0, 5.0)

    def squares(xs):
        return jax.lax.scan(lambda last, x: (x, jnp.stack([x, x * x])), 0.0, xs)[::-1]

    def twice(xs):
        stacked, last = squares(xs)
        return (stacked, stacked.T), last + stacked.sum()

    so_far = jnp.ones((4, 2)), jnp.ones((2, 4))
    (first, second), last = added(twice, so_far, xs)
    assert first.tolist() == (jnp.ones((4, 2)) + squares(xs)[0]).tolist()
    assert second.tolist() == (jnp.ones((2, 4)) + squares(xs)[0].T).tolist()
    assert float(last) == 4 + 10 + 30


def test_narrow_outputs_are_widened_before_they_are_added():
    xs = jnp.full((3,), 1 + 2**-7, jnp.bfloat16)

    def function(xs):
        return jax.lax.scan(lambda turn, x: (turn, x), jnp.int32(0), xs, reverse=True)[1].astype(jnp.float32), None

    assert added(function, jnp.full((3,), 2.0**-12), xs)[0].tolist() == [1 + 2**-7 + 2**-12] * 3


@needs_gpu_compiler
@pytest.mark.newest
def test_on_gpus_a_device_holds_one_stack_of_gradients():
    on, num, width = outlay.mesh(data=8, target="h100:1x8"), 16, 2048
    shapes = jax.eval_shape(lambda: parameters(num, width))

    def placed(leaf):
        spec = P(None, "data") if leaf.ndim == 3 else P()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(on, spec))

    def step(params, batch):
        def grads(batch, carried):
            return jax.grad(loss)(params, batch), carried

        total, _ = sum_over_microbatches(grads, batch, 4, placed=lambda tree: jax.tree.map(as_params, tree))
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, total)

    def as_params(leaf):
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(on, P(None, "data") if leaf.ndim == 3 else P()))

    batch = jax.ShapeDtypeStruct((64, width), jnp.float32, sharding=NamedSharding(on, P("data")))
    compiled = jax.jit(step, donate_argnums=0).lower(jax.tree.map(placed, shapes), batch).compile()
    stack = num * width * width * 4 // 8
    assert compiled.memory_analysis().temp_size_in_bytes < 1.9 * stack
