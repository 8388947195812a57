"""Attention in models of one's own compiles for GPUs and TPUs under every layout, split over samples and heads."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay

pytestmark = pytest.mark.compiles

WIDTH, TOKENS, SAMPLES = 64, 128, 16


def model(kernels, heads, key_heads, attend):
    """Initialize, and the loss of, two layers of attention, stacked for a scan and recomputed."""
    dim = WIDTH // heads
    sizes = (heads * dim, key_heads * dim, key_heads * dim)
    names = ("qkv",) if kernels == "fused" else ("query", "key", "value")

    def init(key):
        shapes = dict(zip(names, (sum(sizes),) if kernels == "fused" else sizes, strict=True)) | {"out": WIDTH}
        layers = {name: jax.random.normal(key, (2, WIDTH, size)) for name, size in shapes.items()}
        return {"embed": jax.random.normal(key, (64, WIDTH)), "layers": layers, "head": jnp.ones((WIDTH, 64))}

    def layer(x, weights):
        weights = jax.tree.map(lambda one: one.astype(x.dtype), weights)
        parts = [x @ weights[name] for name in names]
        parts = jnp.split(parts[0], np.cumsum(sizes)[:2], axis=-1) if kernels == "fused" else parts
        mixed = attend(*(part.reshape(*x.shape[:2], -1, dim) for part in parts))
        return x + mixed.reshape(x.shape) @ weights["out"], None

    def loss(params, tokens, keys):
        x = params["embed"][tokens].astype(jnp.bfloat16)
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = (x @ params["head"].astype(x.dtype)).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(-1), {}

    return init, loss


def compiled(target, layout, kernels, heads, key_heads, attend):
    init, loss = model(kernels, heads, key_heads, attend)
    columns = ["**.qkv"] if kernels == "fused" else ["**.query", "**.key", "**.value"]
    by_name = {"fsdp": outlay.fsdp("data", min_size=64), "dp": outlay.Layout([("**", outlay.replicate())])}
    first, *rest = layout.split("+")
    rules = by_name[first] + outlay.data_parallel()
    if rest:
        rules = outlay.tensor_parallel("model", columns=columns, rows=["**.out"]) + rules
    mesh = outlay.mesh(data=4, model=2, target=target) if rest else outlay.mesh(data=8, target=target)
    optimizer = optax.sgd(0.1)
    tokens = np.zeros((SAMPLES, TOKENS), np.int32)
    step, start = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
    return outlay.program(step, start, tokens, layout=rules, mesh=mesh).compiled.as_text()


def causal(*given):
    return outlay.attention(*given, causal=True)


def windowed(*given):
    return outlay.attention(*given, causal=True, window=32)


def full(*given):
    return outlay.attention(*given)


def of_jax(*given):
    return jax.nn.dot_product_attention(*given, is_causal=True, implementation="cudnn")


# Every two of kernels, layout and number of heads meet in one.
@pytest.mark.thorough  # test_attention.py has it on one device and split
@pytest.mark.parametrize(
    ("layout", "kernels", "heads", "key_heads", "attend", "of_a_device"),
    [
        ("fsdp", "fused", 4, 4, causal, (2, 4)),
        ("fsdp", "fused", 8, 8, of_jax, (2, 8)),
        ("fsdp", "separate", 16, 4, windowed, (2, 16)),
        ("fsdp+tp", "fused", 8, 2, windowed, (4, 4)),
        ("fsdp+tp", "separate", 4, 4, of_jax, (4, 2)),
        ("fsdp+tp", "fused", 1, 1, full, (4, 1)),
        ("dp+tp", "separate", 8, 1, causal, (4, 8)),
    ],
)
def test_the_fused_kernel_gets_samples_and_heads_of_a_device(layout, kernels, heads, key_heads, attend, of_a_device):
    text = compiled("h100:1x8", layout, kernels, heads, key_heads, attend)
    calls = re.findall(r"= \(bf16\[(\d+),(\d+),(\d+),(\d+)\].{0,400}custom_call_target=\"__cudnn\$fmha\w*\"", text)
    assert len(calls) >= 2  # forward and backward
    samples, num_heads = of_a_device
    for dims in calls:
        assert (int(dims[0]), str(num_heads) in dims[1:3]) == (samples, True), dims


@pytest.mark.thorough  # test_attention.py compiles for them
@pytest.mark.filterwarnings("ignore:attention runs block by block")
def test_attention_compiles_for_tpus():
    def packed(*given):
        return outlay.attention(*given, causal=True, segment_ids=jnp.zeros((SAMPLES, TOKENS), jnp.int32))

    assert "ENTRY" in compiled("tpu-v6e:2x4", "fsdp", "fused", 4, 2, packed)
