"""Nodes of users' classes whose constructors compute and check: they see arrays and tracers, as under `jax.jit`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.flat_nodes import FlatNode, flat_nodes, users_nodes
from outlay.core.paths import flatten_paths
from outlay.layout.layout import Layout
from outlay.program.multi_step import several_steps

OPTIMIZER = optax.adam(1e-2)
LAYOUT = outlay.fsdp(min_size=8) + outlay.data_parallel()
X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def checked(value: Any, ndim: int) -> Any:
    """Convert an array, and refuse what is none or has other dims: shapes, shardings, plans, JAX's placeholders."""
    assert isinstance(value, jax.Array | Tracer | np.ndarray), type(value)
    assert value.ndim == ndim
    return jnp.asarray(value)


@jax.tree_util.register_pytree_with_keys_class
class Layer:
    """A node with keys, whose constructor checks."""

    def __init__(self, kernel: Any, bias: Any) -> None:
        self.kernel, self.bias = checked(kernel, 2), checked(bias, 1)

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey
        return ((key("kernel"), self.kernel), (key("bias"), self.bias)), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Layer:
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    """A dataclass that converts what it is given."""

    x: Any

    def __post_init__(self) -> None:
        self.x = checked(self.x, 2)


class _Scale(NamedTuple):
    value: Any


class Scale(_Scale):
    """A named tuple with a `__new__` of its own."""

    __slots__ = ()

    def __new__(cls, value: Any) -> Scale:
        return super().__new__(cls, checked(value, 0) * 1.0)


class Rate:
    """A node without keys."""

    def __init__(self, value: Any) -> None:
        self.value = checked(value, 0)


jax.tree_util.register_pytree_node(Rate, lambda rate: ((rate.value,), None), lambda _, children: Rate(*children))


@jax.tree_util.register_pytree_with_keys_class
class Squeezed(Rate):
    """A node that its path does not show, as boxes of one `.value`."""

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Squeezed:
        return cls(*children)


def init_params(key: jax.Array) -> Any:
    return {"layer": Layer(jax.random.normal(key, (8, 8)), jnp.zeros(8)), "scale": Scale(jnp.float32(2.0))}


def loss(params: Any, batch: Batch, keys: Any) -> Any:
    assert isinstance(params["layer"], Layer)
    assert isinstance(batch, Batch)
    assert isinstance(params["scale"], Scale)
    y = batch.x @ params["layer"].kernel + params["layer"].bias[None]
    return (y**2).mean(-1) * params["scale"].value, {"y": y.mean(-1)}


STEP, INIT = outlay.train_step(loss, OPTIMIZER, accumulate=2), outlay.init_state(init_params, OPTIMIZER)
MODES: tuple[Any, ...] = ("auto", "manual")


@functools.cache
def made(mode: Any) -> outlay.Program:
    return outlay.program(STEP, INIT, Batch(X), layout=LAYOUT, mesh="data=8", mode=mode)


def numbers(state: Any) -> dict[str, np.ndarray]:
    """The leaves of a training state but its key."""
    return {path: np.asarray(leaf) for path, leaf in flatten_paths(state)[0] if path != "key"}


def assert_same(state: Any, other: Any) -> None:
    assert jax.tree.structure(state) == jax.tree.structure(other)
    for path, leaf in numbers(state).items():
        np.testing.assert_allclose(leaf, numbers(other)[path], rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("mode", MODES)
def test_training_is_that_of_jit_and_gives_the_users_own_nodes(mode: str) -> None:
    program = made(mode)
    paths = [leaf.path for leaf in program.plan.state]
    assert paths == [path for path, _ in flatten_paths(jax.jit(INIT)(jax.random.key(0)))[0]]
    assert {"params.layer.kernel", "params.layer.bias", "opt_state.0.mu.layer.kernel"} <= set(paths)
    state, expected = program.init(jax.random.key(0)), jax.jit(INIT)(jax.random.key(0))
    assert isinstance(state.params["layer"], Layer)
    assert state.params["layer"].kernel.sharding.spec == P("data", None)
    by_hand = jax.jit(STEP)
    for _ in range(3):
        state, outputs = program(state, Batch(X))
        expected, metrics = by_hand(expected, Batch(X))
        np.testing.assert_allclose(outputs["loss"], metrics["loss"], rtol=1e-5)
    assert_same(state, expected)


def test_a_state_is_taken_in_the_users_nodes_and_in_those_of_the_shapes() -> None:
    program = made("auto")
    shapes = program.state_shapes
    assert isinstance(shapes.params["layer"], FlatNode)
    inside = flat_nodes(program.init(jax.random.key(0)))
    assert jax.tree.structure(inside) == jax.tree.structure(shapes)
    one, _ = program(inside, Batch(X))
    other, _ = program(program.init(jax.random.key(0)), Batch(X))
    assert_same(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_checkpoints_keep_and_restore_the_users_nodes(mode: str, tmp_path: Any) -> None:
    program, checkpoints = made(mode), outlay.Checkpoints(tmp_path)
    state = program.init(jax.random.key(1))
    checkpoints.save(1, state)
    checkpoints.wait()
    _, restored = checkpoints.restore(program)
    assert_same(restored, state)
    _, partly = checkpoints.restore(program, into=program.init(jax.random.key(2)), only="params.**")
    assert_same(partly.params, state.params)


def test_arrays_of_users_nodes_are_put_moved_and_gathered() -> None:
    program = made("auto")
    params = jax.device_get(init_params(jax.random.key(0)))
    mesh = program.mesh
    plan = outlay.fsdp(min_size=8).plan(params, mesh)
    placed = outlay.arrays.put(params, plan, mesh)
    assert isinstance(placed["layer"], Layer)
    assert placed["layer"].kernel.sharding.spec == P("data", None)
    whole = outlay.arrays.reshard(placed, Layout([("**", outlay.replicate())]).plan(params, mesh), mesh)
    assert isinstance(whole["layer"], Layer)
    assert whole["layer"].kernel.sharding.is_fully_replicated
    np.testing.assert_array_equal(outlay.arrays.gather(placed)["layer"].kernel, params["layer"].kernel)
    assert "layer.kernel" in str(outlay.show(placed))
    assert "layer.kernel" in str(outlay.show(program))


@pytest.mark.thorough  # it trains above, as any program
def test_reports_verify_fit_and_evaluate_take_such_a_program() -> None:
    program = made("auto")
    assert "params.layer.kernel" in str(outlay.explain(program))
    assert outlay.verify(program, batches=[Batch(X)], steps=1).ok
    fitted = outlay.fit(program, [Batch(X)] * 2, steps=2, key=jax.random.key(0))
    assert isinstance(fitted.state.params["layer"], Layer)
    state, expected = program.init(jax.random.key(0)), program.init(jax.random.key(0))
    losses, _ = loss(expected.params, Batch(X), None)
    assert outlay.evaluate(program, state, Batch(X), loss=loss)["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    both, _ = several_steps(program, 2)(state, [Batch(X), Batch(X)])
    for _ in range(2):
        expected, _ = program(expected, Batch(X))
    assert_same(both, expected)


def test_outputs_and_whole_states_may_be_such_nodes() -> None:
    def step(rate: Rate, batch: Batch) -> tuple[Rate, Batch]:
        y = outlay.constrain(Batch(batch.x * rate.value), "y", optional=True)
        return Rate(rate.value + 1), y

    layout = outlay.Layout([("0", outlay.replicate()), ("y.x", P("data"))]) + outlay.data_parallel()
    program = outlay.program(step, lambda key: Rate(jnp.ones(())), Batch(X), layout=layout, mesh="data=8")
    state, outputs = program(program.init(jax.random.key(0)), Batch(X))
    state, outputs = program(state, Batch(X))
    assert isinstance(state, Rate)
    assert isinstance(outputs, Batch)
    assert outputs.x.sharding.spec == P("data")
    np.testing.assert_array_equal(outputs.x, X * 2)

    def read(rate, batch):
        return Batch(batch.x * rate.value)

    only_reads = outlay.program(
        read,
        lambda key: Rate(jnp.ones(())),
        Batch(X),
        layout=outlay.data_parallel(),
        mesh="data=8",
        donate=False,
    )
    assert isinstance(only_reads(state, Batch(X)), Batch)


def test_a_step_that_returns_another_node_is_refused_by_its_name() -> None:
    def step(state: Any, batch: Any) -> Any:
        return (state[0].value,), {}

    with pytest.raises(outlay.errors.ProgramError, match=r"took     .*Squeezed(?s:.)*returned .*\(\*,\)"):
        outlay.program(step, lambda key: (Squeezed(jnp.ones(())),), X, layout=outlay.data_parallel(), mesh="data=8")


class Plain(NamedTuple):
    """A named tuple as they mostly are."""

    value: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fields:
    """A dataclass without code of its own."""

    value: Any


def test_nodes_without_code_of_their_own_stay_as_they_are() -> None:
    shape = jax.ShapeDtypeStruct((2,), "float32")
    tree = {"a": [Plain(shape), Fields((shape, None))], "b": optax.EmptyState(), "c": TrainLike(shape)}
    assert flat_nodes(tree) is tree
    assert users_nodes(tree) is tree
    assert isinstance(flat_nodes(Rate(jnp.ones(()))), FlatNode)


class TrainLike(Plain):
    """A named tuple that another one is derived from."""

    __slots__ = ()


def test_paths_below_users_nodes_are_those_of_the_nodes() -> None:
    key = jax.random.key(0)
    tree = {"a.b": [init_params(key), Rate(jnp.ones(()))], "batch": Batch(X), "s": Scale(jnp.ones(()))}
    assert [path for path, _ in flatten_paths(flat_nodes(tree))[0]] == [path for path, _ in flatten_paths(tree)[0]]
