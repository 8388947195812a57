"""`constrain` inside a program: the values that a rule places live where it says; others are left alone."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

BATCH = np.ones((8, 16), np.float32)


def init(key: Any) -> Any:
    return {"w": jnp.ones((16, 8))}


def step(state: Any, batch: Any) -> tuple[Any, Any]:
    grads = jax.grad(lambda w: jnp.square(batch @ w).mean())(state["w"])
    grads = outlay.constrain({"w": grads}, "grads", optional=True)["w"]
    return {"w": state["w"] - grads}, {"grads": grads}


def make(layout: Any, **axes: int) -> outlay.Program:
    mesh = outlay.mesh(**(axes or {"data": 8}))
    return outlay.program(step, init, BATCH, layout=layout + outlay.data_parallel(), mesh=mesh)


def num_constraints(program: outlay.Program) -> int:
    return program.lowered.as_text().count("sdy.sharding_constraint")


def test_a_rule_for_the_name_places_the_value() -> None:
    program = make(outlay.Layout([("grads.**", P("data"))]))
    assert num_constraints(program) == 1
    assert program.plan["grads.w"].spec == P("data", None)
    state, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert outputs["grads"].sharding.shard_shape((16, 8)) == (2, 8)
    assert state["w"].sharding.shard_shape((16, 8)) == (16, 8)


def test_a_rule_over_several_axes_places_the_value() -> None:
    program = make(outlay.Layout([("grads.w", P("model", "data"))]), data=4, model=2)
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert outputs["grads"].sharding.shard_shape((16, 8)) == (8, 2)


def test_zero2_leaves_each_device_its_piece_of_the_gradients() -> None:
    program = make(outlay.zero2(min_size=8, pattern="w"))
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert program.plan["grads.w"].local_shape == (2, 8)
    assert outputs["grads"].sharding.shard_shape((16, 8)) == (2, 8)


def test_an_optional_name_that_no_rule_speaks_of_is_left_to_the_compiler() -> None:
    program = make(outlay.Layout())
    assert num_constraints(program) == 0
    assert program.plan.of_kind("intermediate") == ()


def test_a_rule_that_says_whole_is_a_constraint_too() -> None:
    program = make(outlay.Layout([("grads.**", outlay.replicate())]))
    assert num_constraints(program) == 1


def test_a_rule_for_a_name_that_the_step_never_uses_is_refused() -> None:
    with pytest.raises(outlay.errors.LayoutError, match=r"unused rule: rule 1 \(\"gradients\.\*\*\""):
        make(outlay.Layout([("gradients.**", P("data"))]))


def test_the_step_keeps_its_name_in_the_lowered_program() -> None:
    assert "jit_step" in make(outlay.Layout()).lowered.as_text()


def make_naming(where: Any, *rules: Any, **axes: int) -> outlay.Program:
    def naming(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, {"hidden": outlay.constrain(batch @ state["w"], where)}

    layout = outlay.Layout(rules) + outlay.data_parallel()
    return outlay.program(naming, init, BATCH, layout=layout, mesh=outlay.mesh(**(axes or {"data": 4, "model": 2})))


def test_a_name_without_a_rule_is_refused_with_what_to_write() -> None:
    with pytest.raises(outlay.errors.ProgramError, match="name without a rule: hiden") as caught:
        make_naming("hiden", outlay.Rule("hidden.**", P("data"), optional=True))
    assert "did you mean 'hidden'?" in str(caught.value)
    assert 'constrain(x, "hiden", optional=True)' in str(caught.value)


def test_a_spec_places_the_value_without_a_rule() -> None:
    program = make_naming(P("data", "model"))
    _, outputs = program(program.init(jax.random.key(0)), BATCH)
    assert outputs["hidden"].sharding.shard_shape((8, 8)) == (2, 4)


def test_a_spec_with_an_axis_that_the_mesh_lacks_is_refused() -> None:
    with pytest.raises(outlay.errors.ProgramError, match=r"has no axis 'modle'[^\n]*\n[^\n]*did you mean 'model'"):
        make_naming(P("modle"))


def test_on_one_device_names_and_specs_do_nothing() -> None:
    mesh = outlay.mesh(only=1, devices=jax.devices()[:1])
    program = outlay.program(
        lambda state, batch: (state, {"hidden": outlay.constrain(batch @ state["w"], P("data", "model"))}),
        init,
        BATCH,
        layout=[("**", outlay.replicate()), ("batch", outlay.replicate())],
        mesh=mesh,
    )
    assert num_constraints(program) == 0


@jax.jit
def layer(x: Any) -> Any:
    return outlay.constrain(x, "hidden") * 2


def turn(x: Any, _: Any) -> Any:
    return layer(outlay.constrain(x, "carried")), None


@pytest.mark.parametrize("batch", ["data", "model"])
def test_values_of_jitted_layers_and_loops_are_placed_in_every_program(batch: str) -> None:
    """JAX caches their traces, and a cached trace asks no layout."""

    def looping(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.lax.scan(turn, layer(x), None, length=2)[0]

    layout = outlay.Layout([("hidden", P(None, batch)), ("carried", P(batch)), ("w", P())]) + outlay.data_parallel()
    program = outlay.program(looping, init, BATCH, layout=layout, mesh=outlay.mesh(data=4, model=2))
    placed = re.findall(r"sdy.sharding_constraint .*<@mesh, (.*?)>", program.lowered.as_text())
    assert sorted(placed) == sorted([f'[{{"{batch}"}}, {{}}]', *[f'[{{}}, {{"{batch}"}}]'] * 2])
