"""Stand-ins of public models in Equinox, with the steps that their authors write: modules whole, vmapped per sample."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.contract.own_models.own_model import EPSILON, OwnModel

import outlay

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class Attend(eqx.Module):
    """A transformer block of one sample, with dropout."""

    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(16)
        self.attention = eqx.nn.MultiheadAttention(2, 16, key=first)
        self.mlp = eqx.nn.MLP(16, 16, 32, 1, activation=jax.nn.gelu, key=second)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: Any, key: Any) -> Any:
        normed = jax.vmap(self.norm)(x)
        x = x + self.attention(normed, normed, normed)
        return x + self.dropout(jax.vmap(self.mlp)(x), key=key)


class VisionTransformer(eqx.Module):
    patches: eqx.nn.Conv2d
    token: jax.Array
    blocks: list[Attend]
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.patches = eqx.nn.Conv2d(3, 16, 4, stride=4, key=keys[0])
        self.token = jax.random.normal(keys[1], (1, 16))
        self.blocks = [Attend(keys[2])]
        self.head = eqx.nn.Linear(16, 10, key=keys[3])

    def __call__(self, image: Any, key: Any) -> Any:
        x = jnp.concatenate([self.token, self.patches(image).reshape(16, -1).T])
        for block, its_key in zip(self.blocks, jax.random.split(key, len(self.blocks)), strict=True):
            x = block(x, its_key)
        return self.head(x[0])


def vision_transformer() -> OwnModel:
    """Vision transformer | Equinox | modules with functions inside, dropout keys per sample, `filter_jit`ted step."""
    optimizer = optax.adamw(1e-3)

    def init(key: Any) -> Any:
        model = VisionTransformer(key)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), key

    @eqx.filter_jit
    def train(model: Any, opt_state: Any, key: Any, batch: Any) -> Any:
        key, *keys = jax.random.split(key, len(batch["label"]) + 1)

        @eqx.filter_value_and_grad
        def loss_of(model: Any) -> Any:
            logits = jax.vmap(model)(batch["image"], jnp.stack(keys))
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

        loss, grads = loss_of(model)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, key, loss

    batch = {"image": normal(8, 3, 8, 8), "label": np.arange(8)}
    # With Outlay:
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    parts = ["params", "opt_state", "key"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


class UNet(eqx.Module):
    """Down, middle, up, with the time of the noise in every layer; its channels are divided by no number of devices."""

    down: eqx.nn.Conv2d
    middle: eqx.nn.Conv2d
    up: eqx.nn.ConvTranspose2d
    out: eqx.nn.Conv2d
    time: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 5)
        self.down = eqx.nn.Conv2d(1, 12, 3, stride=2, padding=1, key=keys[0])
        self.middle = eqx.nn.Conv2d(12, 12, 3, padding=1, key=keys[1])
        self.up = eqx.nn.ConvTranspose2d(12, 9, 4, stride=2, padding=1, key=keys[2])
        self.out = eqx.nn.Conv2d(10, 1, 3, padding=1, key=keys[3])
        self.time = eqx.nn.MLP(1, 12, 32, 1, activation=jax.nn.silu, key=keys[4])

    def __call__(self, image: Any, time: Any) -> Any:
        hidden = jax.nn.silu(self.down(image)) + self.time(time[None])[:, None, None]
        hidden = self.up(jax.nn.silu(self.middle(hidden)))
        return self.out(jnp.concatenate([image, hidden]))


def diffusion() -> OwnModel:
    """Diffusion U-Net | Equinox | an average of the parameters (EMA), noise drawn in the step, odd convolutions."""
    optimizer = optax.adabelief(1e-3)

    def init(key: Any) -> Any:
        model = UNet(key)
        return model, jax.tree.map(lambda x: x, model), optimizer.init(eqx.filter(model, eqx.is_inexact_array)), key

    @eqx.filter_jit
    def train(model: Any, average: Any, opt_state: Any, key: Any, batch: Any) -> Any:
        key, of_noise, of_time = jax.random.split(key, 3)
        noise, time = jax.random.normal(of_noise, batch.shape), jax.random.uniform(of_time, (len(batch),))

        def loss_of(model: Any) -> Any:
            noisy = batch * (1 - time)[:, None, None, None] + noise * time[:, None, None, None]
            return jnp.mean((jax.vmap(model)(noisy, time) - noise) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, opt_state = optimizer.update(grads, opt_state)
        model = eqx.apply_updates(model, updates)
        mix = lambda old, new: 0.99 * old + 0.01 * new if eqx.is_inexact_array(old) else old  # noqa: E731
        return model, jax.tree.map(mix, average, model), opt_state, key, loss

    batch = normal(16, 1, 8, 8)
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    parts = ["params", "ema", "opt_state", "key"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


def _discriminator(key: Any) -> Any:
    keys = jax.random.split(key, 2)
    norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")
    first, last = eqx.nn.Conv2d(1, 16, 4, stride=2, key=keys[0]), eqx.nn.Linear(16 * 9, 1, key=keys[1])
    flat = eqx.nn.Lambda(lambda x: jax.nn.leaky_relu(x).reshape(-1))
    return eqx.nn.Sequential([first, norm, flat, last])


def _generator(key: Any) -> Any:
    keys = jax.random.split(key, 2)
    norm = eqx.nn.BatchNorm(64, axis_name="batch", mode="batch")
    first, last = eqx.nn.Linear(8, 64, key=keys[0]), eqx.nn.Linear(64, 64, key=keys[1])
    shape = eqx.nn.Lambda(lambda x: jnp.tanh(x).reshape(1, 8, 8))
    return eqx.nn.Sequential([first, norm, eqx.nn.Lambda(jax.nn.relu), last, shape])


def gan() -> OwnModel:
    """DCGAN | Equinox | two networks in turn, two optimizers, BatchNorm in Equinox's `State`."""
    optimizer = optax.adam(2e-4, b1=0.5, eps=EPSILON)
    makers = {"gen": _generator, "disc": _discriminator}

    def init(key: Any) -> Any:
        made = {name: eqx.nn.make_with_state(make)(key) for name, make in makers.items()}
        params = {name: model for name, (model, _) in made.items()}
        moments = {name: optimizer.init(eqx.filter(model, eqx.is_inexact_array)) for name, model in params.items()}
        return params, moments, {name: state for name, (_, state) in made.items()}, key

    def run(model: Any, x: Any, state: Any) -> Any:
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    @eqx.filter_jit
    def train(params: Any, moments: Any, states: Any, key: Any, batch: Any) -> Any:
        key, noise = jax.random.split(key)
        noise = jax.random.normal(noise, (len(batch), 8))

        def disc_loss(disc: Any) -> Any:
            fake, _ = run(params["gen"], noise, states["gen"])
            on_real, state = run(disc, batch, states["disc"])
            on_fake, state = run(disc, fake, state)
            return (jax.nn.softplus(-on_real) + jax.nn.softplus(on_fake)).mean(), state

        def gen_loss(gen: Any, disc: Any) -> Any:
            fake, state = run(gen, noise, states["gen"])
            return jax.nn.softplus(-run(disc, fake, states["disc"])[0]).mean(), state

        def update(name: str, grads: Any) -> Any:
            updates, moment = optimizer.update(grads, moments[name])
            return eqx.apply_updates(params[name], updates), moment

        (of_disc, disc_state), grads = eqx.filter_value_and_grad(disc_loss, has_aux=True)(params["disc"])
        disc, disc_moments = update("disc", grads)
        (of_gen, gen_state), grads = eqx.filter_value_and_grad(gen_loss, has_aux=True)(params["gen"], disc)
        gen, gen_moments = update("gen", grads)
        new = {"gen": gen, "disc": disc}, {"gen": gen_moments, "disc": disc_moments}
        return *new, {"gen": gen_state, "disc": disc_state}, key, {"gen": of_gen, "disc": of_disc}

    batch = normal(16, 1, 8, 8)
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    parts = ["params", "opt_state", "norms", "key"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, 16, key=first)
        self.linear = eqx.nn.Linear(16, 1, use_bias=False, key=second)
        self.bias = jnp.zeros(1)

    def __call__(self, sequence: Any) -> Any:
        hidden, _ = jax.lax.scan(lambda hidden, x: (self.cell(x, hidden), None), jnp.zeros(16), sequence)
        return jax.nn.sigmoid(self.linear(hidden) + self.bias)


def recurrent() -> OwnModel:
    """Recurrent classifier (GRU) | Equinox | a scan over the sequence, per sample; the batch is a pair (x, y)."""
    optimizer = optax.adam(3e-3)

    def init(key: Any) -> Any:
        model = Recurrent(key)
        return model, optimizer.init(model)

    @eqx.filter_value_and_grad
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        guess = jax.vmap(model)(x)[:, 0]
        return -jnp.mean(y * jnp.log(guess) + (1 - y) * jnp.log(1 - guess))

    @eqx.filter_jit
    def train(model: Any, opt_state: Any, batch: Any) -> Any:
        loss, grads = loss_of(model, *batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    batch = normal(16, 12, 2), (np.arange(16) % 2).astype(np.float32)
    # With Outlay:
    layout = outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()
    parts = ["params", "opt_state"]
    program = outlay.program(train, init, batch, layout=layout, mesh="data=8", parts=parts)
    return OwnModel(init, train, batch, program, parts)


MODELS = [vision_transformer, diffusion, gan, recurrent]
