"""Stand-ins of public models in plain JAX and in Haiku, with the steps that their authors write."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from tests.contract.own_models.own_model import EPSILON, OwnModel

import outlay

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class Layer(NamedTuple):
    qkv: Any
    out: Any
    up: Any
    down: Any


class GPTParams(NamedTuple):
    embedding: Any
    positions: Any
    layers: Layer


class GPTState(NamedTuple):
    params: GPTParams
    opt_state: Any
    key: Any


def gpt() -> OwnModel:
    """GPT-2 | plain JAX | NamedTuples, scanned layers, bfloat16 inside, MultiSteps; returns its state only."""
    shapes = Layer((2, 16, 48), (2, 16, 16), (2, 16, 64), (2, 64, 16))
    decayed = GPTParams(True, False, Layer(True, True, True, True))
    optimizer = optax.MultiSteps(optax.adamw(1e-2, eps=100 * EPSILON, mask=decayed), every_k_schedule=2)

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        layers = Layer(*(jax.random.normal(keys[0], shape) / 8 for shape in shapes))
        params = GPTParams(jax.random.normal(keys[1], (64, 16)) / 4, jax.random.normal(keys[2], (12, 16)) / 4, layers)
        return (GPTState(params, optimizer.init(params), key),)

    def block(x: Any, layer: Layer) -> Any:
        normed = jax.nn.standardize(x)
        query, key, value = jnp.split((normed @ layer.qkv).reshape(*x.shape[:2], 2, 24), 3, axis=-1)
        x = x + jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape) @ layer.out
        return x + jax.nn.gelu(jax.nn.standardize(x) @ layer.up) @ layer.down, None

    def loss_of(params: GPTParams, tokens: Any, key: Any) -> Any:
        low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
        x = low.embedding[tokens[:, :-1]] + low.positions
        x = x * jax.random.bernoulli(key, 0.9, x.shape) / 0.9
        x, _ = jax.lax.scan(block, x.astype(jnp.bfloat16), low.layers)
        logits = (x @ low.embedding.T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    @jax.jit
    def train(state: GPTState, tokens: Any) -> GPTState:
        key, dropout = jax.random.split(state.key)
        grads = jax.grad(loss_of)(state.params, tokens, dropout)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return GPTState(optax.apply_updates(state.params, updates), opt_state, key)

    batch = RNG.integers(0, 64, (16, 13))
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    step = lambda state, batch: (train(state, batch), {})  # noqa: E731
    program = outlay.program(step, lambda key: init(key)[0], batch, layout=layout, mesh="data=8")
    return OwnModel(init, step, batch, program, tolerance=1e-3)


class TrainingState(NamedTuple):
    params: Any
    opt_state: Any
    rng: Any


def transformer() -> OwnModel:
    """Transformer | Haiku | dropout by `hk.next_rng_key`, the key in the training state."""

    def forward(tokens: Any, *, is_training: bool) -> Any:
        x = hk.Embed(64, 16)(tokens) + hk.get_parameter("positions", (12, 16), init=hk.initializers.RandomNormal(0.1))
        normed = hk.LayerNorm(-1, create_scale=True, create_offset=True)
        mask = np.tril(np.ones((1, 1, 12, 12)))
        x = x + hk.MultiHeadAttention(2, 8, model_size=16, w_init=hk.initializers.VarianceScaling())(x, x, x, mask)
        x = x + hk.dropout(hk.next_rng_key(), 0.1 if is_training else 0.0, hk.nets.MLP([32, 16])(normed(x)))
        return hk.Linear(64)(x)

    model, optimizer = hk.transform(forward), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2, eps=EPSILON))

    def init(key: Any) -> Any:
        params = model.init(key, np.zeros((1, 12), int), is_training=True)
        return (TrainingState(params, optimizer.init(params), key),)

    @jax.jit
    def train(state: TrainingState, tokens: Any) -> Any:
        rng, key = jax.random.split(state.rng)

        def loss_of(params: Any) -> Any:
            logits = model.apply(params, key, tokens[:, :-1], is_training=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        return TrainingState(optax.apply_updates(state.params, updates), opt_state, rng), {"loss": loss}

    batch = RNG.integers(0, 64, (16, 13))
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    program = outlay.program(train, lambda key: init(key)[0], batch, layout=layout, mesh="data=8")
    return OwnModel(init, train, batch, program)


def convolutional() -> OwnModel:
    """Convolutional network with BatchNorm | Haiku | `transform_with_state`: statistics beside the parameters."""

    def forward(images: Any) -> Any:
        x = hk.Conv2D(16, 3, stride=2)(images)
        x = jax.nn.relu(hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training=True))
        return hk.Linear(10)(hk.Flatten()(x))

    model, optimizer = hk.without_apply_rng(hk.transform_with_state(forward)), optax.sgd(0.1, momentum=0.9)

    def init(key: Any) -> Any:
        params, state = model.init(key, np.zeros((1, 8, 8, 1)))
        return params, state, optimizer.init(params)

    @jax.jit
    def train(params: Any, state: Any, opt_state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits, new = model.apply(params, state, batch["image"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), new

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), new, opt_state, loss

    batch = {"image": normal(16, 8, 8, 1), "label": np.arange(16) % 10}
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    parts = ["params", "norms", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


def sharded_experts() -> OwnModel:
    """Mixture of experts (capacity) | Haiku | its own mesh, and its own `shard_map` with an all-to-all."""
    devices = jax.make_mesh((8,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))

    def on_one(x: Any, gates: Any, up: Any, down: Any) -> Any:
        """Two of this device's tokens go to each expert; what an expert gets, its device computes."""
        slots = jax.nn.one_hot(jnp.argsort(-gates, axis=0)[:2], len(x))  # (slots, experts, tokens)
        sent = jax.lax.all_to_all(jnp.einsum("set,td->esd", slots, x), "expert", 0, 0)
        done = jax.nn.relu(sent @ up[0]) @ down[0]
        back = jax.lax.all_to_all(done, "expert", 0, 0)
        return x + jnp.einsum("set,esd,te->td", slots, back, gates)

    split = jax.shard_map(on_one, mesh=devices, in_specs=(P("expert"),) * 4, out_specs=P("expert"))

    def forward(x: Any) -> Any:
        make = hk.initializers.VarianceScaling()
        up, down = (hk.get_parameter(n, s, init=make) for n, s in (("up", (8, 16, 32)), ("down", (8, 32, 16))))
        return hk.Linear(1)(split(x, jax.nn.softmax(hk.Linear(8, name="router")(x)), up, down))[:, 0]

    model, optimizer = hk.without_apply_rng(hk.transform(forward)), optax.adam(1e-2)

    def init(key: Any) -> Any:
        params = model.init(key, np.zeros((32, 16)))
        return params, optimizer.init(params)

    @jax.jit
    def train(params: Any, opt_state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.square(model.apply(p, batch["x"]) - batch["y"]).mean())(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    batch = {"x": normal(32, 16), "y": normal(32)}
    # With Outlay:
    own_axis = outlay.Layout([("params.'~'.*", P("expert")), ("params.*.*", P())])
    layout = own_axis + outlay.data_parallel("expert")
    parts = ["params", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh=devices, parts=parts)
    return OwnModel(init, train, batch, program, parts)


def low_rank_adapters() -> OwnModel:
    """LoRA | plain JAX | a frozen base in 8-bit integers beside adapters that are trained."""
    optimizer = optax.adam(1e-2)

    def init(key: Any) -> Any:
        keys = jax.random.split(key)
        base = {"kernel": jax.random.randint(keys[0], (16, 64), -127, 128, jnp.int8), "scale": jnp.full(64, 0.01)}
        adapters = {"down": jax.random.normal(keys[1], (16, 4)), "up": jnp.zeros((4, 64))}
        return adapters, base, optimizer.init(adapters)

    @jax.jit
    def train(adapters: Any, base: Any, opt_state: Any, batch: Any) -> Any:
        def loss_of(adapters: Any) -> Any:
            frozen = batch["x"] @ base["kernel"].astype(jnp.float32) * base["scale"]
            logits = frozen + batch["x"] @ adapters["down"] @ adapters["up"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(adapters)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(adapters, updates), base, opt_state, loss

    batch = {"x": normal(16, 16), "y": np.arange(16)}
    # With Outlay:
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "base", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


MODELS = [gpt, transformer, convolutional, sharded_experts, low_rank_adapters]
