"""Stand-ins of public models in Flax, NNX and Linen, with the steps that their authors write."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import PartitionSpec as P
from tests.contract.own_models.own_model import EPSILON, OwnModel

import outlay

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class GemmaBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List(nnx.RMSNorm(16, rngs=rngs) for _ in range(2))
        self.qkv, self.out = nnx.Linear(16, 48, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)
        self.gate, self.up, self.down = (nnx.Linear(*size, rngs=rngs) for size in ((16, 32), (16, 32), (32, 16)))

    def __call__(self, x: Any) -> Any:
        query, key, value = jnp.split(self.qkv(self.norms[0](x)).reshape(*x.shape[:2], 2, 24), 3, axis=-1)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        normed = self.norms[1](x)
        return x + self.down(jax.nn.gelu(self.gate(normed)) * self.up(normed))


class Gemma(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedder = nnx.Embed(64, 16, rngs=rngs)
        self.blocks = nnx.List([GemmaBlock(rngs)])
        self.norm = nnx.RMSNorm(16, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embedder(tokens) * 4
        for block in self.blocks:
            x = block(x)
        return self.embedder.attend(self.norm(x))


def gemma() -> OwnModel:
    """Gemma | Flax NNX | model and optimizer are objects that an `nnx.jit`ted step changes in place."""

    def init(key: Any) -> Any:
        model = Gemma(nnx.Rngs(key))
        return model, nnx.Optimizer(model, optax.adamw(1e-3, eps=EPSILON), wrt=nnx.Param)

    @nnx.jit
    def train(model: Any, optimizer: Any, tokens: Any) -> Any:
        def loss_of(model: Any) -> Any:
            logits = model(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    batch = RNG.integers(0, 64, (16, 12))
    # With Outlay:
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "optimizer"]
    step = lambda model, optimizer, batch: (model, optimizer, train(model, optimizer, batch))  # noqa: E731
    program = outlay.program(step, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, step, batch, program, parts)


class NormedMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden, self.out = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 4, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(32, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def normed() -> OwnModel:
    """Classifier with BatchNorm and dropout | Flax NNX | running averages and streams of random keys in the module."""

    def init(key: Any) -> Any:
        model = NormedMLP(nnx.Rngs(key))
        return model, nnx.Optimizer(model, optax.adam(1e-2, eps=EPSILON), wrt=nnx.Param)

    @nnx.jit
    def train(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]).mean()

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    batch = {"x": normal(16, 16), "y": np.arange(16) % 4}
    # With Outlay:
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "optimizer"]
    step = lambda model, optimizer, batch: (model, optimizer, train(model, optimizer, batch))  # noqa: E731
    program = outlay.program(step, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, step, batch, program, parts)


class ResNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        for width in (8, 16):
            around = linen.Conv(width, (1, 1), strides=2, use_bias=False)(x)
            x = linen.Conv(width, (3, 3), strides=2, use_bias=False)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not train, momentum=0.9)(x) + around)
        return linen.Dense(10)(x.mean(axis=(1, 2)))


class ResNetState(train_state.TrainState):
    batch_stats: Any
    ema_params: Any


def resnet() -> OwnModel:
    """ResNet | Flax Linen | a `TrainState` with `batch_stats`, and an average of the parameters (EMA)."""
    model = ResNet()

    def init(key: Any) -> Any:
        made = model.init(key, jnp.ones((1, 8, 8, 3)), train=False)
        tx, params, stats = optax.sgd(0.1, momentum=0.9), made["params"], made["batch_stats"]
        return (ResNetState.create(apply_fn=model.apply, tx=tx, params=params, batch_stats=stats, ema_params=params),)

    @jax.jit
    def train(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, new = state.apply_fn(variables, batch["image"], train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), new

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads, batch_stats=new["batch_stats"])
        ema = optax.incremental_update(state.params, state.ema_params, 0.01)
        return state.replace(ema_params=ema), {"loss": loss}

    batch = {"image": normal(16, 8, 8, 3), "label": np.arange(16) % 10}
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    program = outlay.program(train, lambda key: init(key)[0], batch, layout=layout, mesh="data=8")
    return OwnModel(init, train, batch, program)


class Experts(linen.Module):
    """Each token goes to two of four experts; a second loss keeps these evenly used."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        gates = jax.nn.softmax(linen.Dense(4, name="router")(x))
        best, which = jax.lax.top_k(gates, 2)
        share = jnp.einsum("btk,btke->bte", best / best.sum(-1, keepdims=True), jax.nn.one_hot(which, 4))
        up = self.param("up", linen.initializers.lecun_normal(batch_axis=0), (4, 16, 32))
        down = self.param("down", linen.initializers.lecun_normal(batch_axis=0), (4, 32, 16))
        hidden = jax.nn.gelu(jnp.einsum("btd,edh->beth", x, up))
        balance = 4 * (gates.mean((0, 1)) * (share > 0).mean((0, 1))).sum()
        return x + jnp.einsum("beth,ehd,bte->btd", hidden, down, share), balance


class ExpertModel(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x, balance = Experts(name="experts")(linen.Embed(64, 16, name="embed")(tokens))
        return linen.Dense(64, name="head")(x), balance


def experts() -> OwnModel:
    """Mixture of experts (top-k) | Flax Linen | an auxiliary loss over the batch; experts on their own axis."""
    model, optimizer = ExpertModel(), optax.adam(1e-2)

    def init(key: Any) -> Any:
        params = model.init(key, jnp.zeros((1, 8), int))["params"]
        return params, optimizer.init(params)

    @jax.jit
    def train(params: Any, opt_state: Any, tokens: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits, balance = model.apply({"params": params}, tokens[:, :-1])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
            return loss + 0.01 * balance, balance

        (loss, balance), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss, "balance": balance}

    batch = RNG.integers(0, 64, (16, 9))
    # With Outlay:
    own_axis = outlay.Layout([("params.experts.*", P("expert"))])
    layout = own_axis + outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=4,expert=2", parts=parts)
    return OwnModel(init, train, batch, program, parts)


class ActorCritic(linen.Module):
    @linen.compact
    def __call__(self, frames: Any) -> Any:
        x = linen.relu(linen.Conv(8, (4, 4), strides=2)(frames / 255))
        x = linen.relu(linen.Dense(32, name="hidden")(x.reshape(len(x), -1)))
        return jax.nn.log_softmax(linen.Dense(4, name="logits")(x)), linen.Dense(1, name="value")(x)[:, 0]


def actor_critic() -> OwnModel:
    """PPO actor-critic | Flax Linen | advantages normalised over the batch, a clipped ratio of probabilities."""
    model = ActorCritic()

    def init(key: Any) -> Any:
        params = model.init(key, jnp.zeros((1, 8, 8, 4)))["params"]
        return (train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(3e-3)),)

    @jax.jit
    def train(state: Any, batch: Any) -> Any:
        frames, actions, old_log_probs, returns, advantages = batch

        def loss_of(params: Any) -> Any:
            log_probs, values = state.apply_fn({"params": params}, frames)
            ratio = jnp.exp(jnp.take_along_axis(log_probs, actions[:, None], 1)[:, 0] - old_log_probs)
            normed = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy = -jnp.minimum(ratio * normed, jnp.clip(ratio, 0.9, 1.1) * normed).mean()
            entropy = -(jnp.exp(log_probs) * log_probs).sum(1).mean()
            return policy + 0.5 * jnp.square(returns - values).mean() - 0.01 * entropy

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    actions = (np.arange(16) % 4).astype(np.int32)
    batch = (255 * np.abs(normal(16, 8, 8, 4)), actions, normal(16) - 2, normal(16), normal(16))
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    program = outlay.program(train, lambda key: init(key)[0], batch, layout=layout, mesh="data=8")
    return OwnModel(init, train, batch, program)


class GraphNet(linen.Module):
    """Messages along edges, and a number for each graph."""

    @linen.compact
    def __call__(self, graphs: Any) -> Any:
        nodes = linen.Dense(16)(graphs["nodes"])
        sent = jnp.concatenate([nodes[graphs["senders"]], nodes[graphs["receivers"]]], axis=1)
        messages = linen.relu(linen.Dense(16)(sent))
        nodes = nodes + linen.Dense(16)(jax.ops.segment_sum(messages, graphs["receivers"], len(nodes)))
        pooled = jax.ops.segment_sum(nodes, graphs["graph_of_node"], len(graphs["label"]))
        return linen.Dense(1)(pooled)[:, 0]


def graph_network() -> OwnModel:
    """Graph network | Flax Linen | graphs in one array of nodes and one of edges, gathers and segment sums."""
    model, optimizer = GraphNet(), optax.adam(1e-2)

    def init(key: Any) -> Any:
        params = model.init(key, batch)["params"]
        return params, optimizer.init(params)

    @jax.jit
    def train(params: Any, opt_state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = model.apply({"params": params}, batch)
            return optax.sigmoid_binary_cross_entropy(logits, batch["label"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    edges = {name: RNG.integers(0, 40, 64) for name in ("senders", "receivers")}
    labels = (np.arange(8) % 2).astype(np.float32)
    batch = {"nodes": normal(40, 6), **edges, "graph_of_node": np.arange(40) // 5, "label": labels}
    # With Outlay:
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


MODELS = [gemma, normed, resnet, experts, actor_critic, graph_network]
