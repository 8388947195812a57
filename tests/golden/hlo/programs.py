"""Small programs over a 4x2 mesh, each with collectives that one can count by hand; `make.py` compiles them."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def placed(mesh, shape, spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def squared_loss(params, x):
    hidden = jnp.tanh(x @ params["w1"])
    return jnp.mean((hidden @ params["w2"]) ** 2)


def data_parallel(mesh):
    """A gradient step with the batch over `data`: the gradients of both leaves are summed over it."""

    def step(params, x):
        grads = jax.grad(squared_loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {"w1": placed(mesh, (64, 128), P()), "w2": placed(mesh, (128, 32), P())}
    return jax.jit(step, donate_argnums=0), (params, placed(mesh, (32, 64), P("data")))


def fsdp(mesh):
    """Four scanned layers whose weights lie over `data`: gathered on the way forward and back, gradients scattered."""

    def loss(w, x):
        def layer(h, w_layer):
            return jnp.tanh(h @ w_layer), None

        h, _ = jax.lax.scan(layer, x, w)
        return (h**2).sum()

    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    w = placed(mesh, (4, 256, 256), P(None, "data"))
    return jax.jit(step, donate_argnums=0, out_shardings=w.sharding), (w, placed(mesh, (64, 256), P("data")))


def tensor_parallel(mesh):
    """Two matmuls split over `model`: one sum over it."""

    def apply(w1, w2, x):
        return jax.nn.relu(x @ w1) @ w2

    weights = placed(mesh, (64, 128), P(None, "model")), placed(mesh, (128, 64), P("model"))
    out = NamedSharding(mesh, P("data"))
    return jax.jit(apply, out_shardings=out), (*weights, placed(mesh, (32, 64), P("data")))


def reshard(mesh):
    """From split rows to split columns: everybody sends everybody else a piece."""
    out = NamedSharding(mesh, P(None, "data"))
    return jax.jit(lambda x: x * 2, out_shardings=out), (placed(mesh, (64, 64), P("data")),)


def ring(mesh):
    """Pieces that are passed along `data`, seven times."""

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def rotate(x):
        def once(_, x):
            return jax.lax.ppermute(jnp.sin(x), "data", [(i, (i + 1) % 4) for i in range(4)])

        return jax.lax.fori_loop(0, 7, once, x)

    return jax.jit(rotate), (placed(mesh, (64, 128), P("data")),)


def nested(mesh):
    """A sum over `model` in a loop of five in a loop of three, of two types at once."""

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P(("data", "model")), out_specs=P(("data", "model")))
    def total(x):
        def inner(x, _):
            mean, half = jax.lax.psum((jnp.sin(x), x.astype(jnp.bfloat16)), "model")
            return x + mean * half.astype(jnp.float32), None

        def outer(x, _):
            x, _ = jax.lax.scan(inner, jnp.cos(x), None, length=5)
            return x, None

        x, _ = jax.lax.scan(outer, x, None, length=3)
        return x

    return jax.jit(total), (placed(mesh, (64, 128), P(("data", "model"))),)


PROGRAMS = (data_parallel, fsdp, tensor_parallel, reshard, ring, nested)
