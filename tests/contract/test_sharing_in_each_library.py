"""What each library shares is trained as under its own jit, with SGD and Adam: 20 programs, one table.

NNX objects at several places, in two forms and with checkpoints, have the table of test_shared_objects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from tests.contract.shared_models import OPTIMIZERS, WIDTH, X, as_step, losses_of_nnx, separate, together

import outlay

pytestmark = pytest.mark.newest

NUM_STEPS = 4
SPLIT = outlay.fsdp(min_size=8) + outlay.data_parallel()
WHOLE = outlay.Layout([("**", outlay.replicate())]) + outlay.data_parallel()
Init, Step = Callable[[Any], Any], Callable[[Any, Any], Any]


def trained(init: Init, loss: Callable[..., Any], optimizer: Any) -> tuple[Init, Step]:
    """Init and step of a loop as each of these libraries shows it; `loss(params, rest, x)` returns value and rest."""

    def start(key: Any) -> Any:
        params, rest = init(key)
        return {"params": params, "opt_state": optimizer.init(eqx.filter(params, eqx.is_array)), "rest": rest}

    def step(state: Any, x: Any) -> Any:
        of = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, rest), grads = of(state["params"], state["rest"], x)
        updates, opt_state = optimizer.update(grads, state["opt_state"], eqx.filter(state["params"], eqx.is_array))
        return {"params": eqx.apply_updates(state["params"], updates), "opt_state": opt_state, "rest": rest}, value

    return start, step


def error(y: Any) -> Any:
    return jnp.mean((y - 1) ** 2)


class Equinox(eqx.Module):
    """An embedding that is the head, too, by `eqx.nn.Shared`; or a layer at two places, which Equinox takes for two."""

    parts: Any
    middle: eqx.nn.Linear

    def __init__(self, key: Any, shared: bool) -> None:
        keys = jax.random.split(key, 3)
        self.middle = eqx.nn.Linear(WIDTH, WIDTH, key=keys[0])
        embed = eqx.nn.Embedding(WIDTH, WIDTH, key=keys[1])
        head = eqx.nn.Linear(WIDTH, WIDTH, use_bias=False, key=keys[2])
        if shared:
            self.parts = eqx.nn.Shared(
                (embed, head), where=lambda pair: pair[1].weight, get=lambda pair: pair[0].weight
            )
        else:
            self.parts = (embed, eqx.tree_at(lambda layer: layer.weight, head, embed.weight))

    def __call__(self, x: Any) -> Any:
        embed, head = self.parts if isinstance(self.parts, tuple) else self.parts()
        return head(jnp.tanh(self.middle(x @ embed.weight)))


def equinox(optimizer: Any, shared: bool = True) -> tuple[Init, Step]:
    return trained(
        lambda key: (Equinox(key, shared), None), lambda model, rest, x: (error(jax.vmap(model)(x)), rest), optimizer
    )


class Wraps(hk.Module):
    """A module that another one is given, as a block that is used twice."""

    def __init__(self, inner: Any, name: str) -> None:
        super().__init__(name=name)
        self.inner = inner

    def __call__(self, x: Any) -> Any:
        return self.inner(jnp.tanh(x)) * hk.get_parameter("scale", (WIDTH,), init=jnp.ones)


@hk.transform_with_state
def in_haiku(x: Any) -> Any:
    table = hk.get_parameter("table", (WIDTH, WIDTH), init=hk.initializers.RandomNormal())
    block, norm = hk.Linear(WIDTH, with_bias=False), hk.BatchNorm(True, True, 0.9)
    x = norm(Wraps(block, "first")(x @ table), is_training=True)
    x = x * hk.dropout(hk.next_rng_key(), 0.1, jnp.ones_like(x))
    return Wraps(block, "second")(x) @ table.T


def haiku(optimizer: Any) -> tuple[Init, Step]:
    def init(key: Any) -> Any:
        params, stats = in_haiku.init(key, X)
        return params, {"stats": stats, "key": key}

    def loss(params: Any, rest: Any, x: Any) -> Any:
        key, now = jax.random.split(rest["key"])
        y, stats = in_haiku.apply(params, rest["stats"], now, x)
        return error(y), {"stats": stats, "key": key}

    return trained(init, loss, optimizer)


class Scaled(linen.Module):
    """Given a layer of another module."""

    inner: linen.Module

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.tanh(self.inner(x)) * self.param("scale", linen.initializers.ones, (WIDTH,))


class Linen(linen.Module):
    """A tied embedding, a layer that is used by two modules, and statistics."""

    def setup(self) -> None:
        self.embed, self.block = linen.Embed(WIDTH, WIDTH), linen.Dense(WIDTH, use_bias=False)
        self.other, self.norm = Scaled(self.block), linen.BatchNorm(use_running_average=False)

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.block(x @ self.embed.embedding))
        return self.embed.attend(self.other(x))


class Scoped(linen.Module):
    """Two modules with one scope."""

    def setup(self) -> None:
        self.first, self.second = linen.Dense(WIDTH), linen.Dense(WIDTH)
        linen.share_scope(self, self.second)

    def __call__(self, x: Any) -> Any:
        return self.second(linen.tanh(self.first(x)))


def in_linen(module: linen.Module) -> Callable[[Any], tuple[Init, Step]]:
    def init(key: Any) -> Any:
        values = module.init(key, X)
        return values["params"], values.get("batch_stats", {})

    def loss(params: Any, stats: Any, x: Any) -> Any:
        y, new = module.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
        return error(y), new.get("batch_stats", {})

    return lambda optimizer: trained(init, loss, optimizer)


def plain(optimizer: Any) -> tuple[Init, Step]:
    """The same array at three places: two parameters, and a target network that begins as one of them."""

    def init(key: Any) -> Any:
        w = jax.random.normal(key, (WIDTH, WIDTH)) / 3
        return {"encoder": w, "decoder": w}, w

    def loss(params: Any, target: Any, x: Any) -> Any:
        y = jnp.tanh(x @ params["encoder"]) @ params["decoder"].T + x @ target
        return error(y), 0.9 * target + 0.1 * params["encoder"]

    return trained(init, loss, optimizer)


LIBRARIES: dict[str, Callable[[Any], tuple[Init, Step]]] = {
    "equinox Shared": equinox,
    "equinox, one array at two places": lambda optimizer: equinox(optimizer, shared=False),
    "haiku, a table, a block used twice, statistics, dropout": haiku,
    "linen, a tied embedding, a shared layer, statistics": in_linen(Linen()),
    "linen share_scope": in_linen(Scoped()),
    "the same array at three places": plain,
}
# Those of other libraries than NNX are plain trees, which the newest JAX treats alike.
ON_NEWEST_JAX = {("equinox Shared", "adam"), ("linen, a tied embedding, a shared layer, statistics", "sgd")}
ROWS = [
    pytest.param(name, optimizer, marks=[] if (name, optimizer) in ON_NEWEST_JAX else pytest.mark.any_jax)
    for name in LIBRARIES
    for optimizer in OPTIMIZERS
]


@pytest.fixture(autouse=True)
def as_users_write_it() -> Any:
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize(("name", "optimizer"), ROWS)
def test_shared_parameters_train_as_under_the_librarys_own_jit(name: str, optimizer: str) -> None:
    init, step = LIBRARIES[name](OPTIMIZERS[optimizer])
    program = outlay.program(step, init, X, layout=SPLIT, mesh=outlay.mesh(data=8))
    expected, jitted, state = init(jax.random.key(0)), eqx.filter_jit(step), program.init(jax.random.key(0))
    for _ in range(NUM_STEPS):
        (state, loss), (expected, right) = program(state, X), jitted(expected, X)
        np.testing.assert_allclose(loss, right, rtol=2e-5)
    for number, right in zip(numbers(state), numbers(expected), strict=True):
        np.testing.assert_allclose(number, right, rtol=1e-3, atol=1e-4)


def numbers(state: Any) -> list[np.ndarray]:
    arrays = jax.tree.leaves(eqx.filter(state, eqx.is_array))
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in arrays]


@pytest.mark.any_jax
def test_a_leaf_stands_once_where_the_library_has_one() -> None:
    def paths(make: Callable[[Any], tuple[Init, Step]]) -> list[str]:
        init, step = make(optax.sgd(0.1))
        plan = outlay.program(step, init, X, layout=SPLIT, mesh=outlay.mesh(data=8)).plan
        return [leaf.path.removeprefix("params.") for leaf in plan.state if leaf.path.startswith("params.")]

    assert paths(equinox) == ["parts.pytree.0.weight", "middle.weight", "middle.bias"]
    assert len(paths(lambda optimizer: equinox(optimizer, shared=False))) == 4
    assert [path for path in paths(in_linen(Linen())) if "kernel" in path or "embed" in path] == [
        "block.kernel",
        "embed.embedding",
    ]


@pytest.mark.any_jax
def test_a_state_that_holds_an_array_twice_is_donated_once_for_each_place() -> None:
    """Under `jax.jit` too, where it is an error to donate one buffer twice."""
    init, step = plain(optax.sgd(0.1))
    program = outlay.program(step, init, X, layout=SPLIT, mesh=outlay.mesh(data=8))
    expected = init(jax.random.key(0))
    assert expected["params"]["encoder"] is expected["params"]["decoder"] is expected["rest"]
    state, jitted = program.put(expected), jax.jit(step)
    tied = {**state, "rest": state["params"]["encoder"]}  # by the user, of what lives where it is planned
    for _ in range(NUM_STEPS):
        (tied, loss), (expected, right) = program(tied, X), jitted(expected, X)
        np.testing.assert_allclose(loss, right, rtol=2e-5)


@pytest.mark.thorough  # test_explicit.py trains on such axes
@pytest.mark.parametrize("form", [separate, together])
def test_nnx_objects_on_explicit_axes_are_trained_as_under_nnx_jit(form: Callable[..., Any]) -> None:
    init, step, parts = form("tied", "adam" if form is separate else "sgd")
    mesh = outlay.mesh(data=8, explicit=True)
    program = outlay.program(as_step(step), init, X, layout=WHOLE, mesh=mesh, parts=parts)
    state = program.init(jax.random.key(0))
    for right in losses_of_nnx(init, step, NUM_STEPS):
        state, outputs = program(state, X)
        np.testing.assert_allclose(outputs["loss"], right, rtol=2e-5)
    assert state["model"].head is state["model"].embed


@pytest.mark.thorough  # the rows above
@pytest.mark.parametrize(("form", "optimizer"), [(separate, "sgd"), (together, "adam")])
def test_ones_own_step_over_nnx_objects_on_shards_is_trained_as_under_nnx_jit(
    form: Callable[..., Any], optimizer: str
) -> None:
    init, step, parts = form("tied", optimizer)

    def on_shards(*parts_and_batch: Any) -> Any:
        model, optimizer, x = parts_and_batch
        loss, grads = nnx.value_and_grad(lambda model: jax.lax.pmean(error(model(x)), "data"))(model)
        optimizer.update(*([model] if form is separate else []), grads)
        return model, optimizer, {"loss": loss}

    def two_parts(key: Any) -> Any:
        return init(key)[:2]

    mesh = outlay.mesh(data=8)
    program = outlay.program(on_shards, two_parts, X, layout=WHOLE, mesh=mesh, mode="manual", parts=parts[:2])
    state = program.init(jax.random.key(0))
    for right in losses_of_nnx(init, step, NUM_STEPS):
        state, outputs = program(state, X)
        np.testing.assert_allclose(outputs["loss"], right, rtol=2e-5)
    assert state["model"].head is state["model"].embed


@pytest.mark.thorough  # test_shared_objects.py has tied ones in train_step
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_equinox_shared_in_train_step_is_trained_as_one(mode: Any) -> None:
    def loss(model: Any, batch: Any, keys: Any) -> Any:
        return jnp.mean((jax.vmap(model)(batch) - 1) ** 2, axis=1), {}

    optimizer = OPTIMIZERS["adam"]
    made = outlay.init_state(lambda key: Equinox(key, shared=True), optimizer)
    step = outlay.train_step(loss, optimizer)
    program = outlay.program(step, made, X, layout=SPLIT, mesh=outlay.mesh(data=8), mode=mode)
    state = program.init(jax.random.key(0))
    init, by_hand = equinox(optimizer)
    expected = init(jax.random.split(jax.random.key(0))[0])  # as `init_state` draws it
    for _ in range(NUM_STEPS):
        (state, outputs), (expected, right) = program(state, X), eqx.filter_jit(by_hand)(expected, X)
        np.testing.assert_allclose(outputs["loss"], right, rtol=2e-5)
