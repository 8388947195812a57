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
from tests.contract.shared_models import OPTIMIZERS, WIDTH, Tied, X, as_step, losses_of_nnx, separate, together

import outlay
from outlay.core.array_leaves import split_objects

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


@pytest.mark.thorough  # test_sharing_in_each_library.py has those of NNX
@pytest.mark.parametrize(("model", "optimizer", "form", "num_devices"), OWNERS)
def test_nnx_objects_are_trained_as_under_nnx_jit(
    model: str, optimizer: str, form: Callable[..., Any], num_devices: int, tmp_path: Path
) -> None:
    owner = form(model, optimizer)
    program = program_of(owner, num_devices)
    first = program.init(jax.random.key(0))
    state, losses = run(program)
    np.testing.assert_allclose(losses, losses_of_nnx(owner[0], owner[1], NUM_STEPS), rtol=2e-5)
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


def test_tied_parameters_in_train_step_are_trained_as_one() -> None:
    def loss(model: Any, batch: Any, keys: Any) -> Any:
        return jnp.mean((model(batch) - 1) ** 2, axis=1), {}

    def init(key: Any) -> Any:
        return Tied(nnx.Rngs(key))

    model = init(jax.random.split(jax.random.key(0))[0])  # as `init_state` draws it
    optimizer = nnx.Optimizer(model, OPTIMIZERS["adam"], wrt=nnx.Param)

    @nnx.jit
    def by_hand(model: Any, optimizer: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X) - 1) ** 2))(model)
        optimizer.update(model, grads)
        return value

    right = [float(by_hand(model, optimizer)) for _ in range(NUM_STEPS + 1)]
    for mode in ("auto", "manual"):
        step = outlay.train_step(loss, OPTIMIZERS["adam"])
        made = outlay.init_state(init, OPTIMIZERS["adam"])
        program = outlay.program(step, made, X, layout=LAYOUT, mesh=outlay.mesh(data=8), mode=mode)
        at_once = 2 if mode == "auto" else 1
        done = outlay.fit(program, [X] * NUM_STEPS, steps=NUM_STEPS, key=jax.random.key(0), steps_per_call=at_once)
        np.testing.assert_allclose([row["loss"] for row in done.history], right[:-1], rtol=2e-5)
        assert done.state.params.head is done.state.params.embed
        held_out = outlay.evaluate(program, done.state, X, loss=loss)
        np.testing.assert_allclose(held_out["loss"], right[-1], rtol=2e-5)


@pytest.mark.thorough  # test_flags_between_calls.py
def test_flags_that_change_between_calls_run_as_under_nnx_jit() -> None:
    owner = init, step, _ = separate("regular", "sgd")
    parts, jitted = init(jax.random.key(0)), nnx.jit(step)
    program = program_of(owner)
    state = program.init(jax.random.key(0))
    for flags in ("train", "eval", "train", "eval"):
        getattr(parts[0], flags)()
        getattr(state["model"], flags)()
        state, outputs = program(state, X)
        assert state["model"].norm.use_running_average is (flags == "eval")
        np.testing.assert_allclose(outputs["loss"], float(jitted(*parts, X)["loss"]), rtol=2e-5)


def test_what_else_differs_is_named_by_attribute() -> None:
    program = program_of(separate("regular", "sgd"))
    state = program.init(jax.random.key(0))
    state["model"].library.rate = 0.5
    with pytest.raises(outlay.errors.ProgramError, match=r"model.library.rate: planned 0.1, given 0.5") as caught:
        program(state, X)
    assert len(str(caught.value).splitlines()) <= 5
    state["model"].library.rate = 0.1
    state["model"].drops[1].rngs = nnx.clone(state["model"].drops[0].rngs)  # two generators where one was planned
    with pytest.raises(outlay.errors.ProgramError, match=r"model.drops.1.rngs: planned the same as model.drops.0.rngs"):
        program(state, X)


def test_a_step_that_changes_a_flag_is_refused_by_attribute() -> None:
    def step(model: Any, x: Any) -> Any:
        model.eval()
        return model, {"mean": model(x).mean()}

    init = separate("regular", "sgd")[0]
    with pytest.raises(outlay.errors.ProgramError, match=r"norm.use_running_average: took False, returned True"):
        outlay.program(step, lambda key: init(key)[0], X, layout=LAYOUT, mesh=outlay.mesh(data=8))


def test_a_state_that_exists_already_is_put() -> None:
    owner = init, step, parts = together("tied", "sgd")
    program = program_of(owner)
    state = program.put(dict(zip(parts, init(jax.random.key(0)), strict=True)))
    assert state["optimizer"].model is state["model"]
    losses = []
    for _ in range(NUM_STEPS):
        state, outputs = program(state, X)
        losses.append(float(outputs["loss"]))
    np.testing.assert_allclose(losses, losses_of_nnx(init, step, NUM_STEPS), rtol=2e-5)


def test_the_same_array_twice_in_a_plain_tree_is_two_leaves_as_under_jit() -> None:
    def init(key: Any) -> Any:
        w = jax.random.normal(key, (WIDTH, WIDTH))
        return {"online": w, "target": w}

    def step(state: Any, x: Any) -> Any:
        return {**state, "online": state["online"] * 0.5}, {"loss": (x @ (state["online"] - state["target"])).mean()}

    program = outlay.program(step, init, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
    _, losses = run(program)
    state, right, jitted = init(jax.random.key(0)), [], jax.jit(step)
    for _ in range(NUM_STEPS):
        state, outputs = jitted(state, X)
        right.append(float(outputs["loss"]))
    np.testing.assert_allclose(losses, right, rtol=2e-5, atol=1e-7)
    assert {leaf.path for leaf in program.plan.state} == {"online", "target"}
