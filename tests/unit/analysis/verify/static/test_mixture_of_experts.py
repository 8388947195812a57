"""Mixtures of experts in plain JAX, as compiled for eight H100s: every result is decided, by einsum or all-to-all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.verify.static import static_proof
from outlay.core.jax_compat import text_with_constants

pytestmark = [pytest.mark.compiles, needs_gpu_compiler]
NUM_EXPERTS, CHOSEN, PLACES = 4, 2, 6
AXES = ("data", "expert")


def init(key):
    router, first, second = jax.random.split(key, 3)
    return {
        "router": jax.random.normal(router, (16, NUM_EXPERTS)),
        "in": jax.random.normal(first, (NUM_EXPERTS, 16, 32)) / 4,
        "out": jax.random.normal(second, (NUM_EXPERTS, 32, 16)) / 6,
    }


def route(x, router):
    """Which token goes to which place of which expert, with and without its weight."""
    weights, experts = jax.lax.top_k(jax.nn.softmax(x @ router), CHOSEN)
    chosen = jax.nn.one_hot(experts, NUM_EXPERTS, dtype=jnp.int32)
    in_order = chosen.reshape(len(x), -1, NUM_EXPERTS)
    before = (jnp.cumsum(in_order, axis=1) - in_order).reshape(chosen.shape)
    sent = (chosen * (before < PLACES)).astype(x.dtype)
    place = jax.nn.one_hot((before * chosen).sum(-1), PLACES, dtype=x.dtype)
    return jnp.einsum("bske,bskc->bsec", sent, place), jnp.einsum("bsk,bske,bskc->bsec", weights, sent, place)


def of_experts(x, first, second):
    return jnp.einsum("ebcf,efd->ebcd", jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", x, first)), second)


def by_einsum(params, x):
    """Tokens change devices where a rule says that the named arrays are split by expert."""
    send, combine = route(x, params["router"])
    sent = outlay.constrain(jnp.einsum("bsec,bsd->ebcd", send, x), "sent")
    back = outlay.constrain(of_experts(sent, params["in"], params["out"]), "back")
    return jnp.einsum("bsec,ebcd->bsd", combine, back)


def by_all_to_all(params, x, mesh):
    """Each device sends its tokens to the device of their expert, and gets them back."""

    def on_one_device(x, router, first, second):
        send, combine = route(x, router)
        sent = jax.lax.all_to_all(jnp.einsum("bsec,bsd->ebcd", send, x), "expert", 0, 1, tiled=True)
        back = jax.lax.all_to_all(of_experts(sent, first, second), "expert", 1, 0, tiled=True)
        return jnp.einsum("bsec,ebcd->bsd", combine, back)

    specs = (P(AXES), P(), P("expert"), P("expert"))
    run = jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=P(AXES))
    return run(x, params["router"], params["in"], params["out"])


@functools.cache
def program(way):
    mesh = outlay.mesh(data=2, expert=4, target="h100:1x8")
    layer = by_einsum if way == "einsum" else functools.partial(by_all_to_all, mesh=mesh)

    def step(params, batch):
        value, grads = jax.value_and_grad(lambda params: jnp.mean((layer(params, batch["x"]) - batch["y"]) ** 2))(
            params
        )
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value}

    batch = {name: np.zeros((8, 8, 16), np.float32) for name in ("x", "y")}
    rules = [("in", P("expert", None, "data")), ("out", P("expert", "data")), ("router", P()), ("batch.**", P(AXES))]
    named = [("sent", P("expert", "data")), ("back", P("expert", "data"))] if way == "einsum" else []
    return outlay.program(step, init, batch, layout=outlay.Layout([*rules, *named]), mesh=mesh)


@functools.cache
def text(way):
    return text_with_constants(program(way).compiled)


def proof(monkeypatch, way, changed):
    monkeypatch.setattr(static_proof, "text_with_constants", lambda compiled: changed)
    return outlay.verify(program(way), static=True)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("way", ["einsum", "all-to-all"])
def test_every_result_is_decided(monkeypatch, way):
    verification = proof(monkeypatch, way, text(way))
    assert (verification.faults, verification.undecided, verification.num_unknown) == ((), (), 0), str(verification)
    assert verification.num_results == 4
    assert verification.by_compiler == (way == "einsum")
    assert ("all-to-all" in text(way)) == (way == "all-to-all") or way == "einsum"
