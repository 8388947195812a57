"""Stages of a pipeline as programs of their own devices learn what one device learns, in the order of any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay import schedules

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_rank_promotion("allow"):
        yield


LAYERS, WIDTH, TOKENS, SAMPLES, MICROBATCHES = 4, 8, 6, 16, 4
NUMBERS = np.random.default_rng(0).integers(0, 20, (SAMPLES, TOKENS + 1)).astype(np.int32)
BATCH = {"tokens": NUMBERS, "weight": np.linspace(0.5, 1.5, SAMPLES, dtype=np.float32)}
# Linear in the gradients, and its momentum is the gradient itself after the first step.
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def init_params(key: jax.Array) -> Any:
    table, w, b = jax.random.split(key, 3)
    layers = {"w": 0.5 * jax.random.normal(w, (LAYERS, WIDTH, WIDTH)), "b": jax.random.normal(b, (LAYERS, WIDTH))}
    return {"table": jax.random.normal(table, (20, WIDTH)), "layers": layers, "scale": jnp.ones(WIDTH)}


def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
    """With tied embeddings, layers that are scaled and recomputed, and outputs of each layer."""
    return _loss(params, batch, keys, rate=0.0)


def loss_with_dropout(params: Any, batch: Any, keys: jax.Array) -> Any:
    """With dropout by sample, from keys that layers carry, besides."""
    return _loss(params, batch, keys, rate=0.2)


def loss_kept(params: Any, batch: Any, keys: jax.Array) -> Any:
    """With dropout, and nothing recomputed: the few layers of a stage are no loop."""
    return _loss(params, batch, keys, rate=0.2, recomputed=False)


def _loss(params: Any, batch: Any, keys: jax.Array, rate: float, *, recomputed: bool = True) -> Any:
    before, after = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS))) / jnp.arange(1, TOKENS + 1)[:, None]

    def layer(carry: Any, leaves: Any) -> Any:
        x, keys = carry
        update = jnp.tanh(causal @ x @ leaves["w"] + leaves["b"])
        if rate:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
            update *= jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, (TOKENS, WIDTH)))(keys)
        return (x + update, keys), jnp.mean(update**2, axis=(1, 2))

    layers = jax.tree.map(lambda leaf: leaf * params["scale"], params["layers"])
    (x, _), sizes = jax.lax.scan(
        jax.checkpoint(layer) if recomputed else layer, (params["table"][before], keys if rate else ()), layers
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["table"].T, after).mean(-1)
    return losses + 0.1 * sizes.mean(0), {"size": sizes[-1]}


def backward_first(stage: int) -> Sequence[Any]:
    """One microbatch after the other, in an order of their own."""
    return [(kind, microbatch) for microbatch in (1, 0, 3, 2) for kind in ("forward", "inputs", "weights")]


WAYS: dict[str, tuple[Any, int, int, str, Any]] = {
    "1f1b": ("1f1b", 1, 2, "stage=2,data=2", "equal"),
    "unequal list": ("zb-h1", 1, 1, "stage=2,data=2", "balanced"),
    "zb-h1": ("zb-h1", 1, 1, "stage=2,data=2,model=2", "equal"),
    "gpipe": ("gpipe", 1, 1, "stage=4,data=2", "equal"),
    "interleaved": (None, 2, 1, "stage=2,data=2", "equal"),
    "own": (schedules.in_order(backward_first, 2, MICROBATCHES), 1, 1, "stage=2,data=2", "equal"),
    "unequal": ("zb-h1", 1, 1, "stage=2,data=2", (3, 1)),
    "list": ("1f1b", 1, 1, "stage=2,data=2", "equal"),
    "kept": ("zb-h1", 1, 2, "stage=2,data=2,model=2", "equal"),
    "interleaved unequal list": (None, 2, 1, "stage=2,data=2", "balanced"),
}
"""Of each case: the schedule, repeats, parts of the batch for accumulation, the mesh, and the cut."""


def init_list(key: jax.Array) -> Any:
    """Layers in a list, one more than stages have in equal parts."""
    params = init_params(key)
    stack = jax.tree.map(lambda leaf: jnp.concatenate([leaf, 0.5 * leaf[:1]]), params["layers"])
    return params | {"layers": [jax.tree.map(lambda leaf, n=n: leaf[n], stack) for n in range(LAYERS + 1)]}


def init_equal_list(key: jax.Array) -> Any:
    """Layers in a list, as many for each stage."""
    return {name: leaf[:LAYERS] if name == "layers" else leaf for name, leaf in init_list(key).items()}


def loss_of_list(params: Any, batch: Any, keys: jax.Array) -> Any:
    """With tied embeddings, and layers that are one call of `outlay.layers`."""
    before, after = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    def layer(leaves: Any, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ leaves["w"] + leaves["b"])

    x = outlay.layers(params["layers"], params["table"][before], run=layer)
    losses = optax.softmax_cross_entropy_with_integer_labels(x * params["scale"] @ params["table"].T, after).mean(-1)
    return losses, {}


MODELS: dict[str, Any] = {
    "1f1b": (init_params, loss_with_dropout),
    "kept": (init_params, loss_kept),
    "list": (init_equal_list, loss_of_list),
    "unequal list": (init_list, loss_of_list),
    "interleaved unequal list": (init_list, loss_of_list),
}
"""Of each case with a model of its own: init and loss."""


def made(init: Any, of: Any, schedule: Any, repeats: int, accumulate: int, axes: str, cut: Any) -> outlay.Program:
    pipeline = outlay.layout.pipeline("stage", microbatches=MICROBATCHES, repeats=repeats, cut=cut)
    layout = outlay.Layout(
        [
            ("params.layers.**", pipeline),
            *([("params.layers.w", P(None, None, "model"))] if "model" in axes else []),
        ]
    )
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in axes.split(","))}
    return outlay.program(
        outlay.train_step(of, OPTIMIZER, accumulate=accumulate),
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=layout + outlay.data_parallel(),
        mesh=outlay.mesh(**sizes, devices=jax.devices()[: int(np.prod(list(sizes.values())))]),
        mode="placed",
        schedule=schedule,
    )


@pytest.mark.some_cases(2, newest=0)  # test_known_schedules.py has the others' orders
@pytest.mark.parametrize("name", WAYS)
def test_stages_of_any_schedule_learn_what_one_device_learns(name: str) -> None:
    init_model, of = MODELS.get(name, (init_params, loss))
    program = made(init_model, of, *WAYS[name])
    init, step = outlay.init_state(init_model, OPTIMIZER), jax.jit(outlay.train_step(of, OPTIMIZER))
    left, right = program.init(jax.random.key(0)), init(jax.random.key(0))
    for _ in range(2):
        left, outputs = program(left, BATCH)
        right, expected = step(right, BATCH)
        for one, other in zip(jax.tree.leaves((left, outputs)), jax.tree.leaves((right, expected)), strict=True):
            if jnp.issubdtype(other.dtype, jnp.floating):
                largest = max(1.0, float(jnp.max(jnp.abs(other))))
                assert float(np.max(np.abs(np.asarray(one) - np.asarray(other)))) <= 1e-6 * largest
    # Counted as they ran: what each stage held is what the schedule says, for 1F1B at most the stages.
    assert program.peak_held == program.schedule.peak_held
    if name == "1f1b":
        assert program.peak_held == (2, 1)
    if "list" not in name:  # a stack of which stages have equal parts lies on them
        assert (left.params["layers"]["w"].sharding.spec[0] == "stage") == (name != "unequal")


def test_unequal_stages_of_16_bits_in_a_loop_learn_what_one_device_learns():
    """Sums of gradients are in float32, and layers that a smaller stage takes are not."""

    def mean(params, batch):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch.astype(jnp.bfloat16), params["layers"])
        return jnp.mean(x.astype(jnp.float32) ** 2, axis=-1)

    kernels = (np.random.default_rng(0).normal(size=(11, 16, 16)) / 4).astype(jnp.bfloat16)
    batch = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    rule = ("params.layers", outlay.layout.pipeline("stage", microbatches=4, cut=(6, 5)))
    program = outlay.program(
        outlay.train_step(lambda params, batch, keys: (mean(params, batch), {}), optax.sgd(0.1)),
        outlay.init_state(lambda key: {"layers": jnp.asarray(kernels)}, optax.sgd(0.1)),
        batch,
        layout=outlay.Layout([rule]) + outlay.data_parallel(),
        mesh=outlay.mesh(stage=2, data=4),
        mode="placed",
    )
    state, metrics = program(program.init(jax.random.key(0)), batch)
    value, grads = jax.jit(jax.value_and_grad(lambda params: mean(params, batch).mean()))({"layers": kernels})
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    expected = kernels.astype(np.float32) - 0.1 * np.asarray(grads["layers"], np.float32)
    np.testing.assert_allclose(np.asarray(state.params["layers"], np.float32), expected, atol=2**-8)
