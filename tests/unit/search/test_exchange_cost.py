"""What attention with split tokens and experts are expected to exchange, counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.analysis.cost.links import collective_seconds
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.search.analytic_cost import expect
from outlay.search.exchange_cost import context_seconds, expert_seconds
from outlay.search.mesh_links import MeshLinks
from outlay.search.screening import Rejected, plan_of
from outlay.search.workload import Workload, workload

SAMPLES, TOKENS, HEADS, KEYS, DIM, LAYERS = 4, 64, 4, 2, 8, 4
WIDTH = HEADS * DIM
TARGET = Target.parse("h100:1x8")
MESH = MeshSpec.parse("data=2,context=4")


def attending(params, batch, keys):
    def layer(x, w):
        q = (x @ w).reshape(*x.shape[:2], HEADS, DIM)
        return outlay.attention(q, q[:, :, :KEYS], q[:, :, :KEYS], causal=True).reshape(x.shape), None

    return jax.lax.scan(layer, batch, params["w"])[0].mean((1, 2)), {}


@pytest.fixture(scope="module")
def attention() -> Workload:
    optimizer = optax.sgd(0.1)
    return workload(
        outlay.train_step(attending, optimizer),
        outlay.init_state(lambda key: {"w": jax.random.normal(key, (LAYERS, WIDTH, WIDTH))}, optimizer),
        np.zeros((SAMPLES, TOKENS, WIDTH), np.float32),
        MESH,
    )


def layout_with(exchange) -> Layout:
    calls = Layout([("batch", P("data", "context")), ("@attention", outlay.layout.context("context", exchange))])
    return calls + outlay.replicate()


def of_one_call(work: Workload, exchange) -> float:
    layout = layout_with(exchange)
    plan = plan_of(work, layout, MESH, TARGET)
    return context_seconds(work, plan, layout, MeshLinks(plan.mesh, TARGET), 1)


def sent(kind, heads: float) -> float:
    """The time of sending heads of a device's tokens of two samples to devices in its group of 4."""
    return collective_seconds(kind, heads * SAMPLES / 2 * TOKENS / 4 * DIM * 4, [range(4)], TARGET)


def test_the_calls_of_attention_are_recorded(attention):
    (call,) = attention.attention
    assert (call.query.shape, call.key.shape[2], call.causal) == ((SAMPLES, TOKENS, HEADS, DIM), KEYS, True)


def test_a_ring_passes_keys_and_values_on_forward_and_with_their_gradients_backward(attention):
    mirror = sent("collective-permute", HEADS + KEYS)
    hops = 3 * sent("collective-permute", 2 * KEYS)
    assert of_one_call(attention, "ring") == pytest.approx(2 * mirror + 4 * hops)


def test_gathering_brings_all_keys_twice_and_scatters_their_gradients(attention):
    mirror = sent("collective-permute", HEADS + KEYS)
    gathers = 2 * sent("all-gather", 4 * 2 * KEYS) + sent("reduce-scatter", 2 * 4 * 2 * KEYS)
    assert of_one_call(attention, "gather") == pytest.approx(2 * mirror + gathers)


def test_heads_are_exchanged_four_times_each_way(attention):
    """Queries and outputs have 4 heads; 2 key heads are repeated for 4 devices."""
    assert of_one_call(attention, "all_to_all") == pytest.approx(2 * 4 * sent("all-to-all", 4))
    # Nothing was asked for: what sends least is taken, as the program does.
    assert of_one_call(attention, None) in [of_one_call(attention, each) for each in ("ring", "all_to_all")]


def test_a_pipeline_exchanges_the_tokens_of_a_microbatch_in_each_tick(attention):
    """Of 4 samples a device has one in each of 2 microbatches, and 2 of 4 layers in each of 3 ticks."""
    mesh, stages = MeshSpec.parse("stage=2,data=2,context=2"), outlay.layout.pipeline("stage", microbatches=2)

    def seconds(exchange) -> float:
        layout = Layout([("params.w", stages)]) + layout_with(exchange)
        return expect(attention, plan_of(attention, layout, mesh, TARGET), TARGET, layout).seconds

    def one(kind, heads: float) -> float:
        return collective_seconds(kind, heads * TOKENS / 2 * DIM * 4, [range(2)], TARGET)

    by_ring = 2 * one("collective-permute", HEADS + KEYS) + 4 * one("collective-permute", 2 * KEYS)
    by_heads = 4 * (one("all-to-all", HEADS) + one("all-to-all", KEYS))
    assert seconds("ring") - seconds("all_to_all") == pytest.approx(2 * 3 * (by_ring - by_heads))


def test_heads_that_do_not_divide_are_ruled_out(attention):
    eight = MeshSpec.parse("data=1,context=8")
    with pytest.raises(Rejected, match=r"uneven heads: .* 4 heads do not divide over context=8"):
        plan_of(attention, layout_with("all_to_all"), eight, TARGET)
    assert plan_of(attention, layout_with("gather"), eight, TARGET)


def choosing(params, batch, keys):
    def expert(params, tokens):
        return jax.nn.relu(tokens @ params["up"]) @ params["down"]

    x, _ = outlay.experts(expert, params["experts"], batch, batch @ params["router"], top_k=2, capacity_factor=1.0)
    return x.mean((1, 2)), {}


def test_tokens_go_to_their_experts_and_experts_are_not_gathered():
    def init(key):
        experts = {"up": jnp.zeros((8, WIDTH, 2 * WIDTH)), "down": jnp.zeros((8, 2 * WIDTH, WIDTH))}
        return {"router": jnp.zeros((WIDTH, 8)), "experts": experts}

    optimizer, mesh = optax.sgd(0.1), MeshSpec.parse("data=2,expert=4")
    batch = np.zeros((16, TOKENS, WIDTH), np.float32)
    work = workload(outlay.train_step(choosing, optimizer), outlay.init_state(init, optimizer), batch, mesh)
    layout = outlay.layout.expert_parallel("expert")
    plan = plan_of(work, layout, mesh, TARGET)
    assert plan.expert_axes == ("expert",)
    # Two choices of each token, evenly: 16 tokens of each of 8 samples a device for each expert.
    slots = 2 * 8 * (TOKENS * 2 // 8) * WIDTH * 4
    each = collective_seconds("all-to-all", slots, [range(4)], TARGET)
    assert expert_seconds(plan, MeshLinks(plan.mesh, TARGET), 1) == pytest.approx(4 * each, rel=0.3)
    sharded = outlay.fsdp(min_size=1) + outlay.data_parallel()
    assert sharded.plan(work.state, outlay.mesh(data=8), batch=batch).expert_axes == ()
