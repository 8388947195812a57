"""Memory over the schedule of compiled programs: it adds up, and agrees with the plan and the compiler."""

import json

import jax
import jax.numpy as jnp
import pytest
from tests.unit.report.explain.programs import programs_file, training

from outlay.analysis.attribution.live_memory import OWNERS
from outlay.devices.build import mesh
from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest


@pytest.fixture(scope="module", params=["fsdp", "data_parallel"])
def trained(request):
    program = training(None if request.param == "fsdp" else Layout([*data_parallel()]))
    return program, explain(program)


def test_owners_add_up_to_the_peak_and_arguments_to_the_plan(trained):
    program, explanation = trained
    live, memory = explanation.live_memory, explanation.memory
    owners = live.by_owner()
    assert sum(owners.values()) == live.peak == sum(one.num_bytes for one in live.held)
    assert list(owners) == list(OWNERS)
    assert owners["parameters"] == memory.params
    assert owners["optimizer"] == memory.optimizer
    assert owners["batch"] == memory.batch
    state = owners["parameters"] + owners["optimizer"] + owners["other state"]
    assert state == program.plan.bytes_per_device[program.plan.mesh.device_ids[0]]
    assert state + owners["batch"] == memory.arguments
    assert owners["outputs"] == 4  # the loss: all else comes back where it was


def test_the_peak_is_not_above_the_compilers_and_no_point_is_above_the_peak(trained):
    _, explanation = trained
    live, memory = explanation.live_memory, explanation.memory
    assert memory.arguments < live.peak <= memory.peak
    totals = [sum(held.values()) for _, held in live.stretches]
    assert max(totals) == live.peak
    assert min(totals) >= memory.arguments
    assert 0 <= live.peak_at < 1


def test_values_are_of_the_pass_and_the_line_that_make_them(trained):
    _, explanation = trained
    values = {one.owner: one for one in reversed(explanation.live_memory.held) if one.source}
    assert values["activations"].source.file.endswith(programs_file.name)
    assert "forward" in values["activations"].what


@pytest.mark.compiles
def test_for_gpus_the_peak_is_the_compilers():
    on = mesh(data=8, target="h100:1x8")
    explanation = explain(training(on=on))
    assert explanation.live_memory.peak == pytest.approx(explanation.memory.peak, rel=0.005)
    text = str(explanation)
    assert "memory over the schedule: " in text
    assert ", as the compiler says\n" in text


def test_live_memory_is_in_text_json_and_html(trained):
    _, explanation = trained
    live = explanation.live_memory
    data = json.loads(json.dumps(explanation.to_dict()))["live_memory"]
    assert data["peak"] == live.peak == sum(data["by_owner"].values())
    text = str(explanation)
    assert f"peak at {live.peak_instruction}, " in text
    assert "; the compiler reports " in text or ", as the compiler says" in text
    page = explanation.to_html()
    assert "Memory over the schedule" in page
    assert page.count("<polygon") == 7


def test_what_a_loop_keeps_of_each_round_is_of_the_line_that_makes_it():
    """The inputs of 16 layers are kept for the backward pass: they are what the round before made, not the loop's."""

    def layer(x, kernel):
        x = jnp.tanh(x @ kernel)
        return x * 2.0, None

    def loss(kernels, x):
        return jax.lax.scan(layer, x, kernels)[0].sum()

    shapes = (jax.ShapeDtypeStruct((16, 64, 64), jnp.float32), jax.ShapeDtypeStruct((256, 64), jnp.float32))
    held = explain(jax.jit(jax.grad(loss)), *shapes).live_memory.held
    first = layer.__code__.co_firstlineno
    stored = [one for one in held if one.num_bytes >= 16 * 256 * 64 * 4 and one.source is not None]
    assert stored
    assert all(one.source.line in (first + 1, first + 2) for one in stored), stored
