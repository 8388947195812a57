"""What a step must be is checked before anything is planned; every offending leaf is named."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.program.abstract import Traced, abstract_init, abstract_inputs, abstract_step

pytestmark = pytest.mark.newest

STATE = {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32), "n": jax.ShapeDtypeStruct((), jnp.int32)}
BATCH = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32)}


def error_of(step: Any, state: Any = STATE) -> str:
    with pytest.raises(outlay.errors.ProgramError) as caught:
        abstract_step(step, state, BATCH)
    return str(caught.value)


def test_init_gives_shapes_without_computing() -> None:
    def init(key: Any) -> Any:
        return {"w": jax.random.normal(key, (2**20, 2**20))}  # 4 TiB, had it been made

    assert abstract_init(init)["w"].shape == (2**20, 2**20)


def test_inputs_get_the_dtypes_that_jax_will_see() -> None:
    shapes = abstract_inputs({"x": np.ones((2, 3)), "n": np.ones(2, np.int64), "t": 0.5})
    assert [str(shapes[name].dtype) for name in ("x", "n", "t")] == ["float32", "int32", "float32"]


def test_a_state_with_functions_among_its_leaves_is_refused_with_the_fix() -> None:
    def init(key: Any) -> Any:
        return {"params": {"activation": jnp.tanh, "final_activation": jnp.sin}, "name": "mlp"}

    with pytest.raises(outlay.errors.ProgramError) as caught:
        abstract_init(init)
    message = str(caught.value)
    assert "the state that init returns holds 3 leaves that are not arrays" in message
    for path in ("name", "params.activation", "params.final_activation"):
        assert f"not an array: {path}\n" in message
    assert "fix: keep it out of the tree: eqx.partition(model, eqx.is_array)" in message


def test_integers_that_would_wrap_among_what_init_returns_are_refused() -> None:
    def init(key: Any) -> Any:
        return {"w": jax.random.normal(key, (4,)), "ids": np.array([7, 2**40])}

    with pytest.raises(
        outlay.errors.ProgramError, match=r"init returns holds 1 value .*\n.*ids\n.*1099511627776 at \[1\]"
    ):
        abstract_init(init)


def test_a_batch_with_texts_among_its_leaves_is_refused() -> None:
    with pytest.raises(
        outlay.errors.ProgramError, match=r"the batch holds 1 leaf.*\n.*not an array: label\n.*str: 'cat'"
    ):
        abstract_inputs({"x": np.ones(3), "label": "cat"})


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda state: state["w"], "an array"),
        (lambda state: (state, {}, {}), "a tuple of 3"),
        (lambda state: None, "a NoneType"),
        (lambda state: [state, {}], "a list"),
    ],
    ids=["an array", "three", "nothing", "a list"],
)
def test_a_step_that_returns_no_pair(result: Any, got: str) -> None:
    def my_step(state: Any, batch: Any) -> Any:
        return result(state)

    assert error_of(my_step) == (
        f"the step my_step must return (state, outputs), a pair; it returned {got}"
        "\n  fix: return state, outputs; or outlay.program(..., donate=False) where it only reads the state"
    )


class Two(NamedTuple):
    """A state that could be taken apart as a pair."""

    params: Any
    key: Any


class Three(NamedTuple):
    """A state that could be taken for three results."""

    params: Any
    opt_state: Any
    key: Any


@pytest.mark.parametrize(
    "state",
    [{"w": 1.0}, Two({"w": 1.0}, 2.0), Three({"w": 1.0}, (), 3.0), (1.0, 2.0), 1.0],
    ids=lambda state: str(state),
)
def test_a_step_that_returns_its_state_alone_is_told_so(state: Any) -> None:
    def update(state: Any, batch: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + batch["x"].sum(), state)

    def program(step: Any) -> Any:
        def init(key):
            return jax.tree.map(jnp.float32, state)

        return outlay.program(step, init, BATCH, layout=outlay.data_parallel(), mesh="data=8")

    with pytest.raises(outlay.errors.ProgramError) as caught:
        program(update)
    assert str(caught.value) == (
        "the step update must return (state, outputs), a pair; it returned its state alone"
        "\n  fix: outlay.program(lambda state, batch: (update(state, batch), {}), ...), or return outputs, too"
    )
    program(lambda state, batch: (update(state, batch), {}))


def test_a_step_that_only_reads_may_return_what_looks_like_the_rest_of_its_state() -> None:
    def init(key):
        return (None, jnp.ones(()))

    program = outlay.program(
        lambda state, batch: state[1] + 1, init, BATCH, layout=outlay.data_parallel(), mesh="data=8", donate=False
    )
    assert float(program(program.init(None), BATCH)) == 2


def test_outputs_that_are_no_arrays() -> None:
    message = error_of(lambda state, batch: (state, {"loss": batch["x"].sum(), "name": "adam"}))
    assert re.search(r"the outputs of the step <lambda> holds? 1 leaf.*\n  not an array: name\n", message)


def test_every_leaf_whose_type_changes_is_named() -> None:
    def drifting(state: Any, batch: Any) -> Any:
        return {"w": state["w"][:2], "n": state["n"] + 0.5}, {}

    message = error_of(drifting)
    assert "the step drifting returns a state unlike the one it took: 2 leaves differ" in message
    assert "  w: took float32[4, 4], returned float32[2, 4]" in message
    assert "  n: took int32[], returned float32[]" in message
    assert "fix: return every leaf of the state with its shape and dtype" in message


def test_leaves_that_come_and_go_are_named() -> None:
    message = error_of(lambda state, batch: ({"w": state["w"], "loss": batch["x"].sum()}, {}))
    assert "  n: took int32[], returned nothing" in message
    assert "  loss: took nothing, returned float32[]" in message


def test_another_container_of_the_same_leaves_is_refused() -> None:
    message = error_of(lambda state, batch: (OrderedDict(state), {}))
    assert "returns a state of the same leaves in another container" in message
    assert re.search(r"took .*\{'n': \*, 'w': \*\}", message)
    assert re.search(r"returned .*OrderedDict", message)
    assert "dataclasses.replace(state, ...)" in message


def test_a_weakly_typed_leaf_is_no_drift() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        n: Any

    assert (
        abstract_step(lambda state, batch: (State(jnp.asarray(state.n + 1)), {}), State(STATE["n"]), BATCH) == Traced()
    )
    assert abstract_step(lambda state, batch: ({**state, "n": 3}, {}), STATE, BATCH) == Traced()


def test_constrained_values_are_recorded_by_name() -> None:
    def step(state: Any, batch: Any) -> Any:
        grads = outlay.constrain({"w": state["w"] * 2}, "grads")
        outlay.constrain(batch["x"], "hidden", optional=True)
        outlay.constrain(batch["x"], P("data"))
        return {**state, "w": grads["w"]}, {}

    traced = abstract_step(step, STATE, BATCH)
    assert traced.intermediates["grads"]["w"].shape == (4, 4)
    assert traced.intermediates["hidden"].shape == (8, 4)
    assert traced.required_names == ["grads"]
    assert traced.specs == [P("data")]
    assert not traced.sums_over_batch
