"""A program for absent hardware that is too big to compute here is judged by a smaller one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.verify.as_compiled.room_here import why_no_room
from outlay.core.error_types import ProgramError

pytestmark = needs_gpu_compiler


def init_of(width):
    def init(key):
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (8, width)), "out": jax.random.normal(second, (width, 8)) / width}

    return init


def step(params, batch):
    def loss(params):
        return jnp.mean((jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value}


def clipped(params, batch):
    """The same step with another operation: gradients are clipped."""
    new, outputs = step(params, batch)
    return jax.tree.map(lambda p, q: p + jnp.clip(q - p, -0.5, 0.5), params, new), outputs


def made(width, samples, *, devices=2, target="h100:1x2", axis="data", own=step):
    batch = {"x": np.zeros((samples, 8), np.float32), "y": np.zeros((samples, 8), np.float32)}
    layout = outlay.fsdp(axis, min_size=8) + outlay.data_parallel(axis)
    return outlay.program(own, init_of(width), batch, layout=layout, mesh=outlay.mesh({axis: devices}, target=target))


@functools.cache
def full():
    return made(64, 32)


@functools.cache
def small():
    return made(16, 8)


@pytest.mark.compiles
@pytest.mark.processes
def test_a_smaller_program_of_the_same_structure_tells_that_the_big_one_is_the_same():
    proof = outlay.verify(full(), 1, like=small())
    assert proof.verdict == "same", str(proof)
    assert proof.structure.agrees
    assert proof.static.num_collectives > 0
    assert [(one.path, one.full, one.small) for one in proof.shrunk] == [
        ("in", (8, 64), (8, 16)),
        ("out", (64, 8), (16, 8)),
        ("batch.x", (32, 8), (8, 8)),
    ]
    assert proof.to_dict()["structure"]["agrees"] is True
    proof.raise_if_different()


@pytest.mark.compiles
@pytest.mark.processes
def test_an_operation_that_only_the_big_one_has_makes_the_answer_unknown():
    proof = outlay.verify(made(64, 32, own=clipped), 1, like=small())
    assert proof.verdict == "unknown"
    assert "judged by a smaller one of another structure, but a fault could hide:" in proof.headline
    assert any(
        "parts of the step that the small program lacks: add, jit(clip)/min" in reason for reason in proof.reasons
    ), proof.reasons


def test_a_smaller_program_with_other_axes_and_other_leaves_is_refused_with_all_that_differs():
    other = outlay.program(
        lambda state, batch: (state, batch.sum()),
        lambda key: {"w": jnp.zeros(8)},
        np.zeros((8, 8), np.float32),
        layout=outlay.fsdp("model", min_size=8) + outlay.data_parallel("model"),
        mesh=outlay.mesh(model=2, target="h100:1x2"),
    )
    with pytest.raises(ProgramError, match=r"(?s)axes \('model',\).*a state with other leaves: 3 leaves.*fix:"):
        outlay.verify(full(), 1, like=other)


def test_a_smaller_program_is_not_for_what_is_here():
    here = outlay.program(step, init_of(16), full().batch_shapes, layout=outlay.data_parallel(), mesh="data=8")
    with pytest.raises(ProgramError, match="is compared with one that is compiled for absent hardware"):
        outlay.verify(here, 1, like=small())


def test_too_many_devices_are_said_before_anything_is_compiled():
    program = made(64, 128, devices=64, target="h100:8x8")
    proof = outlay.verify(program)
    assert proof.verdict == "unknown"
    assert "it is for 64 devices, and 32 are simulated here at most" in proof.headline
    assert "outlay.verify(program, like=small)" in proof.headline
    assert not program.is_compiled


def test_a_state_that_does_not_fit_says_how_often_it_is_held():
    wide = outlay.program(
        lambda state, batch: (state + batch.sum(), {}),
        lambda key: jnp.zeros((2**20, 2**16), jnp.float32),
        np.zeros((8, 8), np.float32),
        layout=outlay.fsdp() + outlay.data_parallel(),
        mesh=outlay.mesh(data=8, target="h100:1x8"),
    )
    assert "its state of 256.0 GiB is held about 22 times by a proof of 3 steps" in why_no_room(wide, 3)
    assert "times by a proof of 1 step, which makes" in why_no_room(wide, 1)
    assert why_no_room(full(), 3) == ""


@pytest.mark.compiles
def test_activations_that_do_not_fit_are_said_once_the_program_is_compiled():
    def pairs(state, batch):
        products = batch[:, None] * state[None, :]
        return state + jnp.sin(products @ products).mean(), {}

    num = 2**16
    program = outlay.program(
        pairs,
        lambda key: jnp.ones(num),
        np.ones(num, np.float32),
        layout=outlay.Layout([("**", outlay.replicate()), ("batch", outlay.replicate())]),
        mesh=outlay.mesh(data=2, target="h100:1x2"),
    )
    assert why_no_room(program, 1) == ""
    proof = outlay.verify(program, 1)
    assert proof.verdict == "unknown"
    assert "GiB of activations and other values in between on each of 2 devices, which makes" in proof.headline
    assert "outlay verify --size small" in proof.headline
