"""BatchNorm of every library, two networks with two optimizers, and a target network: as on one device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import outlay

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
BATCH = {name: RNG.normal(size=(32, size)).astype(np.float32) for name, size in {"x": 8, "y": 8}.items()}
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def _errors(out: Any, batch: Any) -> Any:
    return ((out - batch["y"]) ** 2).mean(1)


def with_linen() -> Any:
    model = linen.Sequential([linen.Dense(8), linen.BatchNorm(use_running_average=False)])

    def init(key: Any) -> Any:
        variables = model.init(key, jnp.ones((2, 8)))
        return variables["params"], {"batch_stats": variables["batch_stats"]}

    def loss(params: Any, state: Any, batch: Any, keys: Any) -> Any:
        out, state = model.apply({"params": params, **state}, batch["x"], mutable=["batch_stats"])
        return _errors(out, batch), {}, state

    return init, loss


def with_nnx() -> Any:
    def make(key: Any) -> Any:
        rngs = nnx.Rngs(params=key)
        return nnx.Sequential(nnx.Linear(8, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs))

    graph = nnx.graphdef(nnx.eval_shape(lambda: make(jax.random.key(0))))

    def init(key: Any) -> Any:
        return nnx.split(make(key), nnx.Param, ...)[1:]

    def loss(params: Any, state: Any, batch: Any, keys: Any) -> Any:
        model = nnx.merge(graph, params, state, copy=True)
        out = model(batch["x"])
        return _errors(out, batch), {}, nnx.state(model, nnx.Not(nnx.Param))

    return init, loss


def with_equinox() -> Any:
    def make(key: Any) -> Any:
        norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        return eqx.nn.Sequential([eqx.nn.Linear(8, 8, key=key), norm])

    def loss(model: Any, state: Any, batch: Any, keys: Any) -> Any:
        out, state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(batch["x"], state)
        return _errors(out, batch), {}, state

    return eqx.nn.make_with_state(make), loss


def with_haiku() -> Any:
    def forward(x: Any) -> Any:
        return hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(hk.Linear(8)(x), is_training=True)

    model = hk.without_apply_rng(hk.transform_with_state(forward))

    def loss(params: Any, state: Any, batch: Any, keys: Any) -> Any:
        out, state = model.apply(params, state, batch["x"])
        return _errors(out, batch), {}, state

    return lambda key: model.init(key, jnp.ones((2, 8))), loss


def with_target_network() -> Any:
    """An actor and a critic, trained on a target network that follows the critic."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key)
        params = {name: jax.random.normal(k, (8, 8)) / 3 for name, k in zip(("actor", "critic"), keys, strict=True)}
        return params, {"target": params["critic"]}

    def loss(params: Any, state: Any, batch: Any, keys: Any) -> Any:
        goal = jax.lax.stop_gradient(batch["y"] + 0.9 * batch["x"] @ state["target"])
        critic = ((batch["x"] @ params["critic"] - goal) ** 2).mean(1)
        value = jnp.tanh(batch["x"] @ params["actor"]) @ jax.lax.stop_gradient(params["critic"])
        new = {"target": optax.incremental_update(params["critic"], state["target"], 0.1)}
        return critic - value.mean(1), {"critic": critic}, new

    return init, loss


MODELS = {
    "linen": with_linen,
    "nnx": with_nnx,
    "equinox": with_equinox,
    "haiku": with_haiku,
    "target": with_target_network,
}


# The others also train in test_frameworks.py or test_equinox_modules.py on the newest JAX, and their statistics are
# arrays like those of NNX.
ON_NEWEST_JAX = {"nnx", "target"}
EACH_MODEL = [pytest.param(name, marks=[] if name in ON_NEWEST_JAX else [pytest.mark.any_jax]) for name in MODELS]


def _same(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.parametrize("name", EACH_MODEL)
def test_every_model_trains_as_on_one_device(name: str) -> None:
    mode = "auto" if name == "equinox" else "manual"  # its BatchNorm sums over an axis of vmap, which the check refuses
    init_params, loss = MODELS[name]()
    init = outlay.init_state(init_params, OPTIMIZER, model_state=True)
    step = outlay.train_step(loss, OPTIMIZER, model_state=True)
    mesh = outlay.mesh(data=8)
    program = outlay.program(step, init, BATCH, layout=outlay.data_parallel(), mesh=mesh, mode=mode)
    state, expected, one_device = program.init(jax.random.key(0)), jax.jit(init)(jax.random.key(0)), jax.jit(step)
    for _ in range(2):
        state, metrics = program(state, BATCH)
        expected, expected_metrics = one_device(expected, BATCH)
    _same((state.params, state.model_state, metrics), (expected.params, expected.model_state, expected_metrics))


def test_a_sum_over_an_axis_of_vmap_is_refused_in_mode_manual() -> None:
    init_params, loss = with_equinox()
    init = outlay.init_state(init_params, OPTIMIZER, model_state=True)
    step = outlay.train_step(loss, OPTIMIZER, model_state=True)
    program = outlay.program(step, init, BATCH, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), mode="manual")
    with pytest.raises(outlay.errors.ProgramError, match=r"an axis that jax.vmap names \(.*_batch_norm.py:\d+\)"):
        program(program.init(jax.random.key(0)), BATCH)


def _loss_of(name: str) -> Any:
    return lambda params, batch, keys: (_errors(batch["x"] @ params[name], batch), {})


INIT_ONE = outlay.init_state(lambda key: {"w": jax.random.normal(key, (8, 8))}, OPTIMIZER)


@pytest.mark.any_jax
def test_two_training_states_in_mode_manual() -> None:
    layout = outlay.fsdp(min_size=16) + outlay.data_parallel()
    train = outlay.train_step(_loss_of("w"), OPTIMIZER)

    def init(key: Any) -> Any:
        return {"gen": INIT_ONE(key), "disc": INIT_ONE(jax.random.fold_in(key, 1))}

    def step(state: Any, batch: Any) -> Any:
        (gen, of_gen), (disc, of_disc) = train(state["gen"], batch), train(state["disc"], batch)
        return {"gen": gen, "disc": disc}, (of_gen["loss"], of_disc["loss"])

    program = outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(data=8), mode="manual")
    state, losses = program(program.init(jax.random.key(0)), BATCH)
    expected, expected_losses = jax.jit(step)(init(jax.random.key(0)), BATCH)
    own = state["gen"].params, state["disc"].params, losses
    _same(own, (expected["gen"].params, expected["disc"].params, expected_losses))


@pytest.mark.any_jax
def test_parameters_that_stand_nowhere_in_the_state_are_named() -> None:
    train = outlay.train_step(_loss_of("v"), optax.sgd(0.1))

    def step(state: Any, batch: Any) -> Any:
        params = {"v": state.params["w"]}
        other = dataclasses.replace(state, params=params, opt_state=optax.sgd(0.1).init(params))
        return state, train(other, batch)[1]

    mesh = outlay.mesh(data=8)
    program = outlay.program(step, INIT_ONE, BATCH, layout=outlay.data_parallel(), mesh=mesh, mode="manual")
    state = program.init(jax.random.key(0))
    with pytest.raises(outlay.errors.ProgramError, match=r"1 parameter such as v, and in the state they stand nowhere"):
        program(state, BATCH)


@pytest.mark.any_jax
def test_two_networks_with_two_optimizers() -> None:
    """A GAN in one loss: each network learns from its own part of it, by its own optimizer."""
    stop = jax.lax.stop_gradient

    def judged(disc: Any, x: Any) -> Any:
        return (jnp.tanh(x @ disc["up"]) @ disc["out"])[:, 0]

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        fake = batch["x"] @ params["gen"]
        disc = jax.nn.softplus(judged(params["disc"], stop(fake))) + jax.nn.softplus(
            -judged(params["disc"], batch["y"])
        )
        gen = jax.nn.softplus(-judged(stop(params["disc"]), fake))
        return disc + gen, {"disc": disc, "gen": gen}

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        disc = {"up": jax.random.normal(keys[1], (8, 16)), "out": jax.random.normal(keys[2], (16, 1))}
        return {"gen": jax.random.normal(keys[0], (8, 8)), "disc": disc}

    labels = {"gen": "gen", "disc": "disc"}
    optimizer = optax.partition({"gen": optax.sgd(0.1, momentum=0.9), "disc": optax.adam(1e-2)}, labels)
    step, start = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
    layout = outlay.fsdp(min_size=16, otherwise="replicate") + outlay.data_parallel()
    program = outlay.program(step, start, BATCH, layout=layout, mesh=outlay.mesh(data=8), mode="manual")
    state, expected, one_device = program.init(jax.random.key(0)), jax.jit(start)(jax.random.key(0)), jax.jit(step)
    for _ in range(2):
        state, metrics = program(state, BATCH)
        expected, expected_metrics = one_device(expected, BATCH)
    _same((state.params, metrics), (expected.params, expected_metrics))


@pytest.mark.any_jax
def test_evaluation_uses_the_model_state_that_a_checkpoint_restores(tmp_path: Path) -> None:
    def loss(params: Any, state: Any, batch: Any, keys: Any) -> Any:
        mean = state["mean"] if keys is None else batch["x"].mean(0)
        return ((batch["x"] - mean[None]) @ params["w"]) ** 2, {}, {"mean": mean}

    init = outlay.init_state(lambda key: ({"w": jnp.ones(8)}, {"mean": jnp.zeros(8)}), OPTIMIZER, model_state=True)
    step = outlay.train_step(loss, OPTIMIZER, model_state=True)
    program = outlay.program(step, init, BATCH, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
    state, _ = program(program.init(jax.random.key(0)), BATCH)
    with outlay.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        _, state = checkpoints.restore(program)
    evaluated = outlay.evaluate(program, state, {name: array[:19] for name, array in BATCH.items()}, loss=loss)
    losses = ((BATCH["x"][:19] - BATCH["x"].mean(0)) @ np.asarray(state.params["w"])) ** 2
    np.testing.assert_allclose(evaluated["loss"], losses.mean(), rtol=1e-5)
