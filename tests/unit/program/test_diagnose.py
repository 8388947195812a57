"""A call that cannot run says which leaves are used up, missing, of another type, or elsewhere; all of them."""

from __future__ import annotations

import collections
import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.program.test_program import BATCH, init, make, step

import outlay
from outlay.program.execution import check_outputs

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # what is refused is decided by plans, before JAX


def error_of(state: Any, batch: Any, program: outlay.Program) -> str:
    with pytest.raises(outlay.errors.ProgramError) as caught:
        program(state, batch)
    return str(caught.value)


@pytest.fixture
def program() -> outlay.Program:
    return make()


@pytest.fixture
def state(program: outlay.Program) -> Any:
    return program.init(jax.random.key(0))


def test_a_state_used_twice_is_named_leaf_by_leaf(program: outlay.Program, state: Any) -> None:
    program(state, BATCH)
    message = error_of(state, BATCH, program)
    assert re.search(r"a step donates its state, so 3 leaves are gone: count, key, w", message)
    assert "fix: use the state that the step returns: state, outputs = program(state, batch)" in message


@pytest.mark.any_jax
def test_a_state_of_many_leaves_used_twice_counts_them_and_shows_the_first() -> None:
    program = make(lambda state, batch: (state, {}), lambda key: {f"w{i}": jnp.zeros((8, 8)) + i for i in range(11)})
    state = program.init(jax.random.key(0))
    program(state, BATCH)
    assert re.search(r"11 leaves are gone: w0, w1, w10, w2, w3, w4, w5, w6 and 3 more", error_of(state, BATCH, program))


def test_a_batch_that_an_earlier_step_was_given_can_be_given_again(program: outlay.Program, state: Any) -> None:
    batch = {"x": jax.device_put(BATCH["x"], NamedSharding(program.mesh, P("data")))}
    state, _ = program(state, batch)
    _, outputs = program(state, batch)
    assert float(outputs["total"]) == 496


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"x": np.ones((4, 4), np.float32)}, r"1 problem.*other shape: batch\.x\n.*shape \(4, 4\), planned \(8, 4\)"),
        (
            {"x": np.ones((8, 4), np.float16)},
            r"other dtype: batch\.x\n.*float16, planned float32\n.*astype\('float32'\)",
        ),
        ({"x": np.ones((8, 4), np.int64)}, r"other dtype: batch\.x\n.*int32, planned float32"),
        ({}, r"missing leaf: batch\.x\n.*fix: add it"),
        (None, r"missing leaf: batch\.x"),
        ({"y": BATCH["x"]}, r"2 problem.*missing leaf: batch\.x\n.*'batch\.y'.*extra leaf: batch\.y\n.*'batch\.x'"),
        ({**BATCH, "labels": np.ones(8)}, r"1 problem.*extra leaf: batch\.labels\n.*fix: remove it"),
    ],
    ids=["shape", "dtype", "int dtype", "missing", "none", "renamed", "extra"],
)
def test_a_batch_that_is_not_as_planned(program: outlay.Program, state: Any, batch: Any, expected: str) -> None:
    message = error_of(state, batch, program)
    assert re.search(expected, message, re.DOTALL), message
    _, outputs = program(state, BATCH)  # the refused call has not used the state up
    assert float(outputs["total"]) == 496


def test_state_and_batch_are_diagnosed_together(program: outlay.Program, state: Any) -> None:
    message = error_of({**state, "w": np.ones((16, 4), np.float32)}, {"x": np.ones((8, 5), np.float32)}, program)
    assert "2 problems" in message
    assert "other shape: w\n    shape (16, 4), planned (16, 8)" in message
    assert "other shape: batch.x\n    shape (8, 5), planned (8, 4)" in message


def test_a_state_that_lives_elsewhere_says_how_to_place_it(program: outlay.Program, state: Any) -> None:
    elsewhere = jax.device_put(state, jax.devices()[3])
    message = error_of(elsewhere, BATCH, program)
    assert "3 problems" in message
    assert re.search(
        r"lives elsewhere: w\n.*planned PartitionSpec\('data', None\)|lives elsewhere: w\n.*planned P\('data', None\)",
        message,
    )
    assert "fix: place it first: state = outlay.arrays.put(state, program.plan, program.mesh)" in message
    placed = outlay.arrays.put(elsewhere, program.plan, program.mesh)
    _, outputs = program(placed, BATCH)
    assert float(outputs["total"]) == 496


def test_a_batch_that_lives_elsewhere_says_how_to_pass_it(program: outlay.Program, state: Any) -> None:
    whole = {"x": jax.device_put(BATCH["x"], NamedSharding(program.mesh, P()))}
    message = error_of(state, whole, program)
    assert re.search(r"lives elsewhere: batch\.x\n.*fix: pass the batch as numpy arrays", message, re.DOTALL)


def test_outputs_are_checked_against_the_plan(program: outlay.Program, state: Any) -> None:
    check_outputs(state, program.plan, program.mesh)
    moved = {**state, "w": jax.device_put(state["w"], NamedSharding(program.mesh, P(None, "data")))}
    with pytest.raises(outlay.errors.ProgramError, match=r"1 problem\n  lives elsewhere: w"):
        check_outputs(moved, program.plan, program.mesh)


def test_leaves_on_a_part_of_the_mesh_are_refused_with_the_fix() -> None:
    mesh = outlay.mesh(data=8)
    layout = outlay.by_module({"a": 2, "b": [4, 5]}) + outlay.data_parallel()
    with pytest.raises(outlay.errors.ProgramError) as caught:
        outlay.program(
            lambda state, batch: (state, {}),
            lambda key: {"a": {"w": jnp.ones((4, 4))}, "b": {"w": jnp.ones((4, 4))}, "c": jnp.ones((4, 4))},
            BATCH,
            layout=layout,
            mesh=mesh,
        )
    message = str(caught.value)
    assert "2 leaves live on a part of mesh data=8" in message
    assert "  a.w: device 2 (1. a.**)" in message
    assert "  b.w: device 4, 5 (2. b.**)" in message
    assert (
        "fix: split them over a mesh axis instead of on()/by_module(); outlay.arrays.put only moves arrays" in message
    )


def test_a_state_given_as_host_arrays_runs(program: outlay.Program, state: Any) -> None:
    host = {**state, "w": np.asarray(state["w"]), "count": 0}
    expected, _ = step(init(jax.random.key(0)), BATCH)
    new_state, _ = program(host, BATCH)
    np.testing.assert_allclose(new_state["w"], expected["w"], rtol=1e-6)
    assert new_state["w"].sharding.shard_shape((16, 8)) == (2, 8)


def test_the_same_leaves_in_another_container_are_refused_with_both_containers() -> None:
    program = outlay.program(
        lambda state, batch: (state, {"sum": batch.sum()}),
        lambda key: {"w": jnp.zeros((16, 4))},
        np.ones((8, 3), np.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )
    state = collections.OrderedDict(program.init(jax.random.key(0)))
    with pytest.raises(
        outlay.errors.ProgramError, match="the state has the planned leaves in other containers"
    ) as caught:
        program(state, np.ones((8, 3), np.float32))
    assert "OrderedDict" in str(caught.value)
    assert "fix: pass the state in the containers" in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda program, state: jax.jit(program)(state, BATCH),
        lambda program, state: jax.eval_shape(program, state, BATCH),
        lambda program, state: jax.lax.scan(lambda s, _: program(s, BATCH), state, None, length=2),
        lambda program, state: jax.vmap(lambda b: program(state, b)[1])(
            jax.tree.map(lambda x: np.stack([x, x]), BATCH)
        ),
        lambda program, state: jax.grad(lambda w: program({**state, "w": w}, BATCH)[1]["mean"])(state["w"]),
        lambda program, state: jax.jit(program.init)(jax.random.key(0)),
    ],
    ids=["jit", "eval_shape", "scan", "vmap", "grad", "init"],
)
def test_a_program_under_a_transformation_says_what_to_transform(program, state, call):
    with pytest.raises(
        outlay.errors.ProgramError, match=r"cannot be called under jax.jit, .*\n  fix: call it from plain Python"
    ):
        call(program, state)


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("key", "what"),
    [
        (7, r"one PRNG key, and this is of type int: 7\n  fix: jax.random.key\(7\)"),
        ("key", "this is of type str: 'key'"),
        (jax.ShapeDtypeStruct((2,), "float32"), r"this is float32\[2\]"),
    ],
)
def test_a_key_that_is_none(program, key, what):
    with pytest.raises(outlay.errors.ProgramError, match=what):
        program.init(key)


@pytest.mark.any_jax
def test_several_keys_are_not_one(program):
    with pytest.raises(outlay.errors.ProgramError, match=r"this is key<fry>\[4\]"):
        program.init(jax.random.split(jax.random.key(0), 4))


@pytest.mark.any_jax
@pytest.mark.parametrize(
    "words", ["text", np.array(["a", "b"]), np.array([object()])], ids=["text", "texts", "objects"]
)
def test_a_batch_of_texts_is_no_batch(program, state, words):
    batch = jax.tree.map(lambda _: words, BATCH)
    assert "not an array: batch" in error_of(state, batch, program)


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"mesh": None}, r"mesh must be a jax.sharding.Mesh, and is None\n  fix: mesh=outlay.mesh"),
        ({"mesh": 8}, "and is a int"),
        ({"init": {"w": 1.0}}, r"init must be a function init\(key\), and is a dict"),
        ({"step": None}, r"step must be a function step\(state, batch\)"),
        ({"step": init, "init": step}, "they are swapped"),
    ],
)
def test_what_a_program_is_made_of_is_checked_first(change, what):
    given = {"step": step, "init": init, "mesh": outlay.mesh(data=8), **change}
    with pytest.raises(outlay.errors.ProgramError, match=what):
        outlay.program(given["step"], given["init"], BATCH, layout=outlay.data_parallel(), mesh=given["mesh"])


@pytest.mark.any_jax
def test_a_program_says_what_it_is_and_does_not_change(program):
    assert repr(program) == "<Program of step: 3 leaves of state on mesh data=8 (8 simulated devices), mode auto>"
    with pytest.raises(
        outlay.errors.ProgramError, match=r"program.layout cannot be changed.*\n  fix: make another program"
    ):
        program.layout = outlay.data_parallel()
    with pytest.raises(outlay.errors.ProgramError, match=r"program.compiled_parts cannot be changed"):
        program.compiled_parts = ()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(outlay.errors.ProgramError, match="a program cannot be copied or pickled"):
            copied(program)
    with pytest.raises(AttributeError, match="rules"):
        program.layout.rules = ()


@pytest.mark.any_jax
def test_a_mesh_may_be_text(program):
    layout = outlay.Layout([("**", outlay.replicate())]) + outlay.data_parallel()
    assert outlay.program(step, init, BATCH, layout=layout, mesh="data=8").mesh == outlay.mesh(data=8)


@pytest.mark.any_jax
def test_a_policy_that_raises_is_named_with_its_leaf():
    layout = outlay.Layout([("w", lambda leaf: 1 / 0)]) + outlay.data_parallel()
    with pytest.raises(
        outlay.errors.LayoutError, match=r"(?s)policy that raises: w\n.*ZeroDivisionError: .*test_diagnose.py:\d+"
    ):
        layout.plan({"w": jnp.ones((8, 8))}, outlay.mesh(data=8))
