import jax
import jax.numpy as jnp
import pytest

import outlay
from outlay.core.error_types import ExplainError
from outlay.devices.target import Target
from outlay.report.explain.explain import estimate, explain


@pytest.fixture(scope="module")
def program():
    def step(state, batch):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(state["w"])
        return {"w": state["w"] - 0.1 * gradient}, {"loss": loss}

    return outlay.program(
        step,
        lambda key: {"w": jax.random.normal(key, (256, 128))},
        jax.ShapeDtypeStruct((64, 256), jnp.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )


def test_a_program_on_its_own_devices_and_on_others(program):
    here, there = estimate(program), estimate(program, target="h100:1x8")
    assert (here.target, there.target) == ("cpu:8", "h100:1x8")
    assert here.flops == there.flops == 2 * (2 * 64 * 256 * 128) / 8
    assert here.seconds > 5 * there.seconds
    assert {one.axes for one in there.transfers} == {("data",)}


def test_an_explanation_is_not_compiled_again(program):
    explanation = explain(program)
    assert estimate(explanation) is explanation.estimate
    again = estimate(explanation, target=Target.parse("h100:1x8"))
    assert again == estimate(program, target="h100:1x8")
    assert again.seconds_low < explanation.estimate.seconds_low


def test_a_jitted_function_and_its_arguments(program):
    (state, batch), _ = program.compiled.input_shardings
    shapes = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        (program.state_shapes, program.batch_shapes),
        (state, batch),
    )
    estimated = estimate(jax.jit(program.step), *shapes, target="h100:1x8")
    assert estimated.flops == estimate(program).flops


def test_text_without_its_hardware_has_no_time():
    text = jax.jit(jnp.sum).lower(jnp.ones(8)).compile().as_text()
    with pytest.raises(
        ExplainError, match=r'the hardware is unknown.*\n  fix: outlay\.estimate\(\.\.\., target="h100:1x8"\)'
    ):
        estimate(text)


def test_a_target_of_another_size(program):
    for x in (program, explain(program)):
        with pytest.raises(ExplainError, match=r"the program is for 8 devices, but h100:2x8 has 16"):
            estimate(x, target="h100:2x8")
