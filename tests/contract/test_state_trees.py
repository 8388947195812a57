"""Whatever the state is made of, it is planned, born, run and kept in its own containers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay
from outlay.core.paths import flatten_paths

pytestmark = pytest.mark.newest

BATCH = np.ones((8, 2), np.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Data:
    """A dataclass with a static field."""

    weights: Any
    name: str = dataclasses.field(metadata={"static": True}, default="static")


class Named(NamedTuple):
    """A named tuple."""

    first: Any
    second: Any


def split(dtype: Any = jnp.float32) -> Any:
    """A leaf that FSDP splits."""
    return jnp.ones((16, 4), dtype)


STATES = {
    "list indices": (lambda key: {"layers": [split(), (split(), split())]}, {"layers.0", "layers.1.0", "layers.1.1"}),
    "a bare list": (lambda key: [split(), split()], {"0", "1"}),
    "a bare array": (lambda key: split(), {""}),
    "dataclasses": (lambda key: Data([split()]), {"weights.0"}),
    "named tuples": (lambda key: Named(split(), Named(split(), None)), {"first", "second.first"}),
    "typed keys": (
        lambda key: {"key": key, "keys": jax.random.split(key, 16), "w": split()},
        {"key", "keys", "w"},
    ),
    "int keys": (lambda key: {0: split(), 10: split(), 9: split()}, {"0", "9", "10"}),
    "tuple keys": (lambda key: {("a", 1): split()}, {"'(\\'a\\', 1)'"}),
    "scalars": (
        lambda key: {"count": jnp.zeros((), jnp.int32), "rate": jnp.float32(0.1), "w": split()},
        {"count", "rate", "w"},
    ),
    "python scalars": (lambda key: {"count": 0, "rate": 0.1, "on": True}, {"count", "rate", "on"}),
    "an empty state": (lambda key: {}, set()),
    "no state": (lambda key: None, set()),
    "empty subtrees": (lambda key: {"a": {}, "b": None, "c": [], "d": (), "w": split()}, {"w"}),
    "empty arrays": (lambda key: {"none": jnp.zeros((0, 4)), "w": split()}, {"none", "w"}),
    "bfloat16": (lambda key: {"w": split(jnp.bfloat16)}, {"w"}),
    "ints and bools": (
        lambda key: {"i8": split(jnp.int8), "u32": split(jnp.uint32), "b": split(jnp.bool_)},
        {"i8", "u32", "b"},
    ),
    "complex": (lambda key: {"z": split(jnp.complex64)}, {"z"}),
    "dots in names": (lambda key: {"a.b": {"c": split()}, "a": {"b.c": split()}}, {"'a.b'.c", "a.'b.c'"}),
}


ON_NEWEST_JAX = {"dataclasses", "typed keys", "tuple keys", "python scalars", "empty arrays", "dots in names"}
"""What JAX itself treats in a way of its own; the other trees are of what these are made of."""
EACH_STATE = [
    pytest.param(*state, id=name, marks=[] if name in ON_NEWEST_JAX else pytest.mark.any_jax)
    for name, state in STATES.items()
]


def step(state: Any, batch: Any) -> tuple[Any, Any]:
    """Change every number, keep every type."""

    def change(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.vmap(lambda k: jax.random.fold_in(k, 1))(leaf) if leaf.ndim else jax.random.fold_in(leaf, 1)
        return ~leaf if leaf.dtype == jnp.bool_ else leaf + jnp.ones((), leaf.dtype)

    return jax.tree.map(change, state), {"mean": batch.mean()}


def numbers(leaf: Any) -> np.ndarray:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.mark.some_cases(18, newest=3)
@pytest.mark.parametrize(("init", "paths"), EACH_STATE)
def test_a_state_is_planned_born_and_run(init: Any, paths: set[str]) -> None:
    mesh = outlay.mesh(data=8)
    layout = outlay.fsdp(min_size=16) + outlay.data_parallel()
    if not jax.tree.leaves(jax.eval_shape(init, jax.random.key(0))):
        layout = outlay.data_parallel()  # strict rules refuse an FSDP of nothing
    program = outlay.program(step, init, BATCH, layout=layout, mesh=mesh)
    assert {leaf.path for leaf in program.plan.state} == paths
    assert outlay.layout.Plan.from_json(program.plan.to_json()) == program.plan

    key = jax.random.key(4)
    state, expected = program.init(key), jax.jit(init)(key)
    for _ in range(2):
        assert jax.tree.structure(state) == jax.tree.structure(expected)
        assert_placed_as_planned(state, program.plan)
        for (path, got), want in zip(flatten_paths(state)[0], jax.tree.leaves(expected), strict=True):
            assert got.dtype == want.dtype, path
            np.testing.assert_array_equal(numbers(got), numbers(want), err_msg=path)
        (state, outputs), (expected, _) = program(state, BATCH), jax.jit(step)(expected, BATCH)
        assert float(outputs["mean"]) == 1.0


@pytest.mark.any_jax
def test_big_leaves_of_every_tree_are_split() -> None:
    whole = {"count", "rate", "key", "on", "none"}
    layout, mesh = outlay.fsdp(min_size=16), outlay.mesh(data=8)
    for name, (init, paths) in STATES.items():
        if paths:
            plan = layout.plan(jax.eval_shape(init, jax.random.key(0)), mesh)
            assert {leaf.path for leaf in plan if not leaf.is_split} <= whole, name


def test_a_batch_may_be_any_tree() -> None:
    batch = Named({1: BATCH, 3: BATCH}, [BATCH, np.int32(2), None])
    layout = outlay.fsdp(min_size=16) + outlay.data_parallel()

    def sums(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, jax.tree.map(jnp.sum, batch)

    program = outlay.program(sums, lambda key: split(), batch, layout=layout, mesh=outlay.mesh(data=8))
    paths = [leaf.path for leaf in program.plan.of_kind("batch")]
    assert sorted(paths) == ["batch.first.1", "batch.first.3", "batch.second.0", "batch.second.1"]
    _, outputs = program(program.init(jax.random.key(0)), batch)
    assert jax.tree.map(float, outputs) == Named({1: 16.0, 3: 16.0}, [16.0, 2.0, None])


def test_a_step_may_give_no_outputs() -> None:
    layout = outlay.fsdp(min_size=16) + outlay.data_parallel()
    program = outlay.program(
        lambda s, b: (s, None), lambda key: split(), BATCH, layout=layout, mesh=outlay.mesh(data=8)
    )
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert outputs is None
