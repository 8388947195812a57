"""Random keys of every kind and shape, typed and old-style, are leaves of state and batch as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.paths import flatten_paths


class Source:
    """A node of a user's class around keys, whose constructor takes keys only."""

    def __init__(self, key: Any) -> None:
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key), key
        self.key = key


jax.tree_util.register_pytree_node(Source, lambda one: ((one.key,), None), lambda _, children: Source(*children))


def keys(impl: str) -> dict[str, Any]:
    key = jax.random.key(3, impl=impl)
    rows = jax.random.split(key, 8)
    return {
        "one": key,
        "rows": rows,
        "grid": jax.random.split(key, (8, 2)),
        "old": jax.random.key_data(key),
        "old_rows": jax.random.key_data(rows),
        "source": Source(rows),
    }


def typed(tree: dict[str, Any], impl: str) -> list[jax.Array]:
    data = [jax.random.wrap_key_data(tree[name], impl=impl) for name in ("old", "old_rows")]
    return [one.reshape(-1) for one in (tree["one"], tree["rows"], tree["grid"], tree["source"].key, *data)]


def bits(tree: Any) -> dict[str, np.ndarray]:
    return {
        path: np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for path, leaf in flatten_paths(tree)[0]
    }


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_in_state_and_batch_draw_what_they_draw_under_jit(impl: str, tmp_path: Path) -> None:
    def step(state: Any, batch: Any) -> Any:
        drawn = [jax.vmap(jax.random.uniform)(one) for tree in (state, batch) for one in typed(tree, impl)]
        folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(state["rows"])
        return {**state, "rows": folded, "source": Source(folded)}, {"drawn": jnp.concatenate(drawn)}

    names = ("rows", "grid", "old_rows", "source.0")
    split = [(f"{root}{name}", P("data")) for root in ("", "batch.") for name in names]
    layout = outlay.Layout([*split, ("*", P()), ("batch.*", P())])
    program = outlay.program(step, lambda key: keys(impl), keys(impl), layout=layout, mesh="data=8")
    state, expected = program.init(jax.random.key(0)), keys(impl)
    assert state["rows"].sharding.spec == P("data")
    assert isinstance(state["source"], Source)
    by_hand = jax.jit(step)
    for _ in range(2):
        state, outputs = program(state, keys(impl))
        expected, results = by_hand(expected, keys(impl))
        np.testing.assert_array_equal(outputs["drawn"], results["drawn"])
    checkpoints = outlay.Checkpoints(tmp_path)
    checkpoints.save(1, state)
    checkpoints.wait()
    _, restored = checkpoints.restore(program)
    for tree in (state, restored):
        assert {path: leaf.tolist() for path, leaf in bits(tree).items()} == {
            path: leaf.tolist() for path, leaf in bits(expected).items()
        }
