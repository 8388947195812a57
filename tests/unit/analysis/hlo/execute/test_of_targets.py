"""Programs that the compilers for GPUs and TPUs made, computed here, against plain JAX on this machine."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.analysis.hlo.execute.as_function import unknown_operations
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.run_compiled import Job, compute
from outlay.core.jax_compat import text_with_constants

pytestmark = pytest.mark.compiles
TARGETS = {"h100:1x4": "tf32", "tpu-v5e:2x2": "bfloat16"}
RNG = np.random.default_rng(0)


def drawn(*dims):
    return (RNG.normal(size=dims) / 4).astype(np.float32)


IMAGES = {"image": drawn(8, 8, 8, 16), "label": RNG.integers(0, 10, 8).astype(np.int32)}
CNN = {
    "conv": drawn(3, 3, 16, 16),
    "bias": drawn(16),
    "dense": drawn(1024, 16),
    "shift": drawn(16),
    "out": drawn(16, 10),
}


def predict(params, image):
    around = ("NHWC", "HWIO", "NHWC")
    hidden = lax.conv_general_dilated(image, params["conv"], (1, 1), "SAME", dimension_numbers=around)
    hidden = jax.nn.relu(hidden + params["bias"].reshape(1, 1, 1, -1)).reshape(len(image), -1)
    hidden = jax.nn.gelu(hidden @ params["dense"] + params["shift"].reshape(1, -1))
    return hidden @ params["out"]


def trained(params, batch):
    def loss(params):
        losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["image"]), batch["label"])
        return losses.mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - g, params, grads), value


def of_target(function, args, specs, target):
    """What the program compiled for a target is computed to, with float32 multiplied as it is and as there."""
    mesh = outlay.mesh(data=4, target=target)
    at = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    shapes = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), args, at)
    with jax.set_mesh(mesh):
        compiled = jax.jit(function).lower(*shapes).compile()
    text = text_with_constants(compiled)
    assert unknown_operations(parse_hlo(text)) == ()
    ins, outs = (
        tuple(tuple(one.spec) for one in jax.tree.leaves(of_all))
        for of_all in (compiled.input_shardings, compiled.output_shardings)
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    with jax.enable_x64(True):
        return compute(Job(text, (("data", 4),), ins, outs, (leaves,), TARGETS[target]))


def furthest(got, want):
    return max(
        np.abs(g.astype(float) - np.asarray(w, float)).max() / np.abs(np.asarray(w, float)).max()
        for g, w in zip(got, jax.tree.leaves(want), strict=True)
    )


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_step_with_convolutions_and_products(target):
    specs = ({**dict.fromkeys(CNN, P()), "dense": P("data")}, dict.fromkeys(IMAGES, P("data")))
    answer = of_target(trained, (CNN, IMAGES), specs, target)
    want = jax.jit(trained)(CNN, IMAGES)
    # A TPU's program rounds what it multiplies in instructions of its own; a GPU's library does it inside of a call.
    assert furthest(answer.exact[0], want) < (1e-5 if target.startswith("h100") else 1e-2)
    assert 1e-5 < furthest(answer.rounded, want) < 2e-2
    assert not answer.differing


def gradients_of(attention, dtype):
    def attended(*arrays):
        def energy(*arrays):
            return jnp.sum(attention(*arrays).astype(jnp.float32) ** 2)

        # In float32 the numbers are the same: they have been rounded before.
        arrays = [x.astype(jnp.bfloat16).astype(dtype) for x in arrays]
        value, grads = jax.value_and_grad(energy, (0, 1, 2))(*arrays)
        return value, [grad.astype(jnp.float32) for grad in grads]

    return attended


def test_attention_of_cudnn():
    arrays = drawn(4, 64, 4, 64), drawn(4, 64, 2, 64), drawn(4, 64, 2, 64)
    fused = gradients_of(lambda q, k, v: outlay.attention(q, k, v, causal=True), jnp.bfloat16)
    answer = of_target(fused, arrays, (P("data"),) * 3, "h100:1x4")
    plain = gradients_of(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), jnp.float32)
    assert furthest(answer.exact[0], jax.jit(plain)(*arrays)) < 2e-2
