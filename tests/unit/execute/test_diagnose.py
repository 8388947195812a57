"""A call that cannot run says which leaves are used up, missing, of another type, or elsewhere; all of them."""

from __future__ import annotations

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.execute.test_program import BATCH, init, make, step

import outlay
from outlay.execute.diagnose import check_outputs


def error_of(state: Any, batch: Any, program: outlay.Program) -> str:
    with pytest.raises(outlay.ProgramError) as caught:
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
    assert re.search(r"a step donates its state, so 3 leaf\(s\) are gone: count, key, w", message)
    assert "cure: keep the state that the step returns: state, outputs = program(state, batch)" in message


def test_a_state_of_many_leaves_used_twice_counts_them_and_shows_the_first() -> None:
    program = make(lambda state, batch: (state, {}), lambda key: {f"w{i}": jnp.zeros((8, 8)) + i for i in range(11)})
    state = program.init(jax.random.key(0))
    program(state, BATCH)
    assert re.search(
        r"11 leaf\(s\) are gone: w0, w1, w10, w2, w3, w4, w5, w6 and 3 more", error_of(state, BATCH, program)
    )


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
        ({}, r"missing leaf: batch\.x\n.*cure: add it"),
        (None, r"missing leaf: batch\.x"),
        ({"y": BATCH["x"]}, r"2 problem.*missing leaf: batch\.x\n.*'batch\.y'.*extra leaf: batch\.y\n.*'batch\.x'"),
        ({**BATCH, "labels": np.ones(8)}, r"1 problem.*extra leaf: batch\.labels\n.*cure: take it out"),
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
    assert "2 problem(s)" in message
    assert "other shape: w\n    shape (16, 4), planned (16, 8)" in message
    assert "other shape: batch.x\n    shape (8, 5), planned (8, 4)" in message


def test_a_state_that_lives_elsewhere_says_how_to_place_it(program: outlay.Program, state: Any) -> None:
    elsewhere = jax.device_put(state, jax.devices()[3])
    message = error_of(elsewhere, BATCH, program)
    assert "3 problem(s)" in message
    assert re.search(
        r"lives elsewhere: w\n.*planned PartitionSpec\('data', None\)|lives elsewhere: w\n.*planned P\('data', None\)",
        message,
    )
    assert "cure: place it first: state = outlay.put(state, program.plan, program.mesh)" in message
    placed = outlay.put(elsewhere, program.plan, program.mesh)
    _, outputs = program(placed, BATCH)
    assert float(outputs["total"]) == 496


def test_a_batch_that_lives_elsewhere_says_how_to_pass_it(program: outlay.Program, state: Any) -> None:
    whole = {"x": jax.device_put(BATCH["x"], NamedSharding(program.mesh, P()))}
    message = error_of(state, whole, program)
    assert re.search(r"lives elsewhere: batch\.x\n.*cure: pass the batch as numpy arrays", message, re.DOTALL)


def test_outputs_are_checked_against_the_plan(program: outlay.Program, state: Any) -> None:
    check_outputs(state, program.plan, program.mesh)
    moved = {**state, "w": jax.device_put(state["w"], NamedSharding(program.mesh, P(None, "data")))}
    with pytest.raises(outlay.ProgramError, match=r"1 problem\(s\)\n  lives elsewhere: w"):
        check_outputs(moved, program.plan, program.mesh)


def test_leaves_on_a_part_of_the_mesh_are_refused_with_the_cure() -> None:
    mesh = outlay.mesh(data=8)
    layout = outlay.by_module({"a": 2, "b": [4, 5]}) + outlay.data_parallel()
    with pytest.raises(outlay.ProgramError) as caught:
        outlay.program(
            lambda state, batch: (state, {}),
            lambda key: {"a": {"w": jnp.ones((4, 4))}, "b": {"w": jnp.ones((4, 4))}, "c": jnp.ones((4, 4))},
            BATCH,
            layout=layout,
            mesh=mesh,
        )
    message = str(caught.value)
    assert "2 leaf(s) live on a part of mesh data=8" in message
    assert "  a.w: device 2 (1. a.**)" in message
    assert "  b.w: device 4, 5 (2. b.**)" in message
    assert "cure: split them over a mesh axis instead of on()/by_module(); outlay.put only moves arrays" in message


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
    with pytest.raises(outlay.ProgramError, match="the state has the planned leaves in other containers") as caught:
        program(state, np.ones((8, 3), np.float32))
    assert "OrderedDict" in str(caught.value)
    assert "cure: pass the state in the containers" in str(caught.value)
