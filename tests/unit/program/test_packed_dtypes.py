"""Arrays of 8 bits and less are state as any other: they run, come back as they were, and are stored exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
WIDTHS = {"int4": (-8, 8), "uint4": (0, 16), "int2": (-2, 2), "float4_e2m1fn": (-4, 5), "float8_e4m3": (-16, 17)}


def step(state: Any, x: Any) -> Any:
    weights = state["q"].astype(jnp.float32)
    return {"q": state["q"][::-1], "count": state["count"] + 1}, {"y": x @ weights}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("name", "spec"), [*((name, P("data", None)) for name in WIDTHS), ("int4", P(None, None))])
def test_quantized_weights_run_and_are_stored(name: str, spec: P, tmp_path: Path) -> None:
    dtype = jnp.dtype(getattr(jnp, name))

    def init(key: jax.Array) -> Any:
        return {"q": jax.random.randint(key, (16, 16), *WIDTHS[name]).astype(dtype), "count": jnp.zeros((), jnp.int32)}

    layout = outlay.Layout([("q", spec), ("count", P())]) + outlay.data_parallel()
    program = outlay.program(step, init, X, layout=layout, mesh="data=8")
    state, expected = program.init(jax.random.key(0)), jax.jit(init)(jax.random.key(0))
    by_hand = jax.jit(step)
    for _ in range(3):
        state, outputs = program(state, X)
        expected, results = by_hand(expected, X)
        np.testing.assert_allclose(outputs["y"], results["y"], rtol=1e-5, atol=1e-5)
    checkpoints = outlay.Checkpoints(tmp_path)
    checkpoints.save(3, state)
    checkpoints.wait()
    _, restored = checkpoints.restore(program)
    assert restored["q"].dtype == dtype
    assert restored["q"].sharding.is_equivalent_to(jax.NamedSharding(program.mesh, spec), 2)
    np.testing.assert_array_equal(
        np.asarray(restored["q"]).astype(np.float32), np.asarray(expected["q"]).astype(np.float32)
    )
    program(restored, X)
