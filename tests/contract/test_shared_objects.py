"""What stands at several places of a state is one thing in a program as well, as under the library's own jit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.contract.shared_models import X, as_step, losses_of_nnx, separate, together

import outlay
from outlay.core.shared_objects import split_objects

NUM_STEPS = 4
LAYOUT = outlay.fsdp(min_size=8) + outlay.data_parallel()


def program_of(owner: Any, num_devices: int = 8, **options: Any) -> Any:
    init, step, parts = owner
    mesh = outlay.mesh(data=num_devices, devices=jax.devices()[:num_devices])
    return outlay.program(as_step(step), init, X, layout=LAYOUT, mesh=mesh, parts=parts, **options)


def run(program: Any, num_steps: int = NUM_STEPS) -> tuple[Any, list[float]]:
    state, losses = program.init(jax.random.key(0)), []
    for _ in range(num_steps):
        state, outputs = program(state, X)
        losses.append(float(outputs["loss"]))
    return state, losses


def shared_paths(tree: Any) -> set[tuple[str, ...]]:
    """Return the groups of places at which one variable stands."""
    return {tuple(sorted(".".join(map(str, path)) for path in group)) for group in nnx.find_duplicates(tree)}


# Each model with each optimizer and in each of the two forms; on one device half of these pairs.
OWNERS = [
    ("tied", "sgd", separate, 8),
    ("tied", "adam", together, 8),
    ("tied", "adam", separate, 1),
    ("regular", "sgd", together, 8),
    ("regular", "adam", separate, 8),
    ("stacked", "adam", separate, 8),
    ("stacked", "sgd", together, 1),
    ("cycle", "sgd", together, 8),
    ("cycle", "adam", together, 8),
]


@pytest.mark.parametrize(("model", "optimizer", "form", "num_devices"), OWNERS)
def test_nnx_objects_are_trained_as_under_nnx_jit(
    model: str, optimizer: str, form: Callable[..., Any], num_devices: int, tmp_path: Path
) -> None:
    owner = form(model, optimizer)
    program = program_of(owner, num_devices)
    first = program.init(jax.random.key(0))
    state, losses = run(program)
    np.testing.assert_allclose(losses, losses_of_nnx(*owner[:2], NUM_STEPS), rtol=2e-5)
    assert type(state["model"]) is type(owner[0](jax.random.key(0))[0])
    as_made = dict(zip(owner[2], owner[0](jax.random.key(0)), strict=True))
    assert shared_paths(state) == shared_paths(first) == shared_paths(as_made)
    assert len(program.plan.state) == len(jax.tree.leaves(split_objects(state)[1]))  # each leaf once

    with outlay.Checkpoints(tmp_path / "saved") as checkpoints:
        checkpoints.save(NUM_STEPS, state)
        checkpoints.wait()
        _, restored = checkpoints.restore(program)
    assert shared_paths(restored) == shared_paths(first)
    for old, new in zip(*(jax.tree.leaves(split_objects(tree)[1]) for tree in (state, restored)), strict=True):
        keys = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
        old, new = (jax.random.key_data(x) if keys else x for x in (old, new))
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
    # The state that was read is trained on as the one that was saved.
    assert float(program(state, X)[1]["loss"]) == float(program(restored, X)[1]["loss"])
