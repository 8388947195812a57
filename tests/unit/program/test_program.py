"""A program runs what it planned: without tracing twice, without leaving a mesh behind, without hiding errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.paths import flatten_paths

pytestmark = pytest.mark.newest

BATCH = {"x": np.arange(32, dtype=np.float32).reshape(8, 4)}


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, (16, 8)), "count": jnp.zeros((), jnp.int32), "key": key}


def step(state: Any, batch: Any) -> tuple[Any, Any]:
    new_state = {**state, "w": state["w"] - batch["x"].mean(), "count": state["count"] + 1}
    return new_state, {"total": batch["x"].sum()}


def make(step: Any = step, init: Any = init, batch: Any = BATCH, **axes: int) -> outlay.Program:
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    return outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(**(axes or {"data": 8})))


def test_a_program_computes_what_the_step_computes() -> None:
    program = make()
    state = program.init(jax.random.key(7))
    np.testing.assert_array_equal(state["w"], jax.random.normal(jax.random.key(7), (16, 8)))
    state, outputs = program(state, BATCH)
    np.testing.assert_allclose(state["w"], jax.random.normal(jax.random.key(7), (16, 8)) - 15.5, rtol=1e-6)
    assert int(state["count"]) == 1
    assert float(outputs["total"]) == 496


@pytest.mark.some_cases(4, newest=1)
@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        {"x": BATCH["x"].astype(np.float64)},
        {"x": jnp.asarray(BATCH["x"])},
        {"x": np.asfortranarray(BATCH["x"])},
    ],
    ids=["numpy", "numpy float64", "jax on one device", "another memory order"],
)
def test_a_batch_may_be_any_array_of_its_shape(batch: Any) -> None:
    program = make()
    _, outputs = program(program.init(jax.random.key(0)), batch)
    assert float(outputs["total"]) == 496


def test_a_batch_given_as_shapes_is_enough_to_make_a_program() -> None:
    program = make(batch={"x": jax.ShapeDtypeStruct((8, 4), jnp.float32)})
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert float(outputs["total"]) == 496


def test_later_calls_never_trace_the_step_again() -> None:
    num_traces = 0

    def counted(state: Any, batch: Any) -> tuple[Any, Any]:
        nonlocal num_traces
        num_traces += 1
        return step(state, batch)

    program = make(counted)
    assert num_traces == 1, "planning traces once"
    state, _ = program(program.init(jax.random.key(0)), BATCH)
    assert num_traces == 1, "what is compiled is that trace"
    for x in (BATCH["x"], BATCH["x"] + 1, jnp.asarray(BATCH["x"]), BATCH["x"].astype(np.float64)):
        state, _ = program(state, {"x": x})
    state, _ = program(program.init(jax.random.key(1)), BATCH)
    program.compiled  # noqa: B018 - what explain and benchmarks read must be what runs, not another compile
    assert num_traces == 1
    assert int(state["count"]) == 1


def test_a_step_that_sets_what_jax_reads_while_it_traces_computes_what_it_computes_alone() -> None:
    """Its trace is compiled, outside of what it had set."""

    def precise(state: Any, batch: Any) -> tuple[Any, Any]:
        with jax.enable_x64(True):
            rest = ((batch["x"] * 0 + 1).astype("float64") * 1e-9 + 1).sum() - batch["x"].size
        return state, rest.astype("float32")

    program = make(precise)
    state = program.init(jax.random.key(0))
    expected = jax.jit(precise)(jax.device_get(state), BATCH)[1]
    assert expected != 0
    assert program(state, BATCH)[1] == expected


def test_a_setting_of_jax_that_changes_before_it_is_compiled_counts() -> None:
    def product(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, state["w"] @ state["w"].T

    plain, precise = make(product), make(product)
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in precise.lowered.as_text()
    assert "HIGHEST" not in plain.lowered.as_text()


def test_what_is_compiled_says_the_plans_shardings() -> None:
    program = make(data=4, model=2)
    state_shardings, _ = program.compiled.output_shardings
    for path, sharding in flatten_paths(state_shardings)[0]:
        leaf = program.plan[path]
        assert sharding.shard_shape(leaf.shape) == leaf.local_shape, path
    (state_in, batch_in), _ = program.compiled.input_shardings
    assert state_in["w"].spec == program.plan["w"].spec == P("data", None)
    assert batch_in["x"].spec == program.plan["batch.x"].spec == P("data", None)


def test_the_compiled_step_writes_the_new_state_into_the_old_ones_memory() -> None:
    program = make()
    analysis = program.compiled.memory_analysis()
    w_local = 2 * 8 * 4
    assert analysis.alias_size_in_bytes >= w_local


def test_no_mesh_is_left_behind() -> None:
    program = make()
    program(program.init(jax.random.key(0)), BATCH)
    assert jax.sharding.get_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty


def test_no_mesh_is_left_behind_by_errors() -> None:
    def failing(key: Any) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        make(init=failing)
    assert jax.sharding.get_mesh().empty
    program = make()
    with pytest.raises(outlay.errors.ProgramError):
        program(program.init(jax.random.key(0)), {})
    assert jax.sharding.get_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty


def test_a_model_may_name_the_meshs_axes_itself() -> None:
    seen = []

    def named(state: Any, batch: Any) -> tuple[Any, Any]:
        hidden = jax.lax.with_sharding_constraint(batch["x"] @ state["w"], P("data", "model"))
        return state, {"hidden": hidden}

    def named_init(key: Any) -> Any:
        seen.append(jax.sharding.get_abstract_mesh().axis_names)
        return {"w": jax.lax.with_sharding_constraint(jax.random.normal(key, (4, 8)), P(None, "model"))}

    program = make(named, named_init, data=4, model=2)
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert set(seen) == {("data", "model")}
    assert outputs["hidden"].sharding.spec == P("data", "model")


def test_an_nnx_model_may_name_the_meshs_axes_in_its_parameters() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def init(key: Any) -> Any:
        kernel_init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        return {"params": nnx.Linear(4, 8, kernel_init=kernel_init, rngs=nnx.Rngs(key))}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, {"out": state["params"](batch["x"])}

    program = make(step, init, data=4, model=2)
    state, outputs = program(program.init(jax.random.key(0)), BATCH)
    # What the layout says is what holds: its FSDP rule, not the model's annotation.
    assert state["params"].kernel.get_value().sharding.shard_shape((4, 8)) == program.plan["params.kernel"].local_shape
    assert outputs["out"].shape == (8, 8)


class OfTheUser(Exception):
    """An error of the user's own code."""


@pytest.mark.parametrize("kind", [OfTheUser, ValueError, TypeError, RuntimeError])
def test_errors_of_the_step_and_of_init_come_through_unchanged(kind: type[Exception]) -> None:
    def failing(*_: Any) -> Any:
        raise kind("of the user")

    for parts in ({"step": failing}, {"init": failing}):
        with pytest.raises(kind, match=r"^of the user") as caught:
            make(**parts)
        assert type(caught.value) is kind


def test_static_parts_made_anew_by_every_trace_of_init_do_no_harm() -> None:
    class WithFunction:
        def __init__(self, w: Any, function: Any) -> None:
            self.w, self.function = w, function

    jax.tree_util.register_dataclass(WithFunction, data_fields=["w"], meta_fields=["function"])

    def init(key: Any) -> Any:
        return WithFunction(jax.random.normal(key, (16, 8)), lambda x: x + 1)  # never equal to another trace's

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return WithFunction(state.function(state.w), state.function), {}

    program = make(step, init)
    first, second = program.init(jax.random.key(0)), program.init(jax.random.key(0))
    before = np.asarray(first.w)
    for state in (first, second):
        state, _ = program(state, BATCH)
        np.testing.assert_array_equal(state.w, before + 1)


def test_init_takes_a_key_that_is_committed_to_one_device() -> None:
    program = make()
    key = jax.device_put(jax.random.key(0), jax.devices()[3])
    assert jax.tree.structure(program.init(key)) == jax.tree.structure(program.state_shapes)


def _view(array: jax.Array) -> jax.Array:
    """Another array of the same memory."""
    blocks = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, blocks)


def two_alike(key: Any) -> Any:
    w = jax.random.randint(key, (16, 8), 0, 9).astype(jnp.float32)  # whole, so that sums are exact
    return {"w": w, "target": jnp.zeros((16, 8)), "key": key, "spare": key}


def follow_the_batch(state: Any, batch: Any) -> tuple[Any, Any]:
    return {**state, "w": state["w"] - 1}, {"total": batch.sum()}


@pytest.mark.parametrize("other", [lambda array: array, _view], ids=["the same array", "the same memory"])
def test_one_array_may_stand_in_the_state_twice_and_in_the_batch(other: Any) -> None:
    program = make(follow_the_batch, two_alike, np.ones((16, 8), np.float32))
    state = program.init(jax.random.key(7))
    expected = np.asarray(state["w"])
    for step in range(2):  # before the first step, and a target that is set later
        tied = {**state, "target": other(state["w"]), "spare": state["key"]}
        state, outputs = program(tied, other(tied["w"]))
        np.testing.assert_array_equal(state["target"], expected - step)
        assert float(outputs["total"]) == (expected - step).sum()
    np.testing.assert_array_equal(state["w"], expected - 2)
    assert state["target"].sharding == program.init(jax.random.key(7))["target"].sharding
    # What a call returned goes in again; of this state one leaf also is the batch.
    state, outputs = program(state, other(state["w"]))
    assert float(outputs["total"]) == (expected - 2).sum()
