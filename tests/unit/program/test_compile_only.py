"""Programs on a mesh of compile-only devices: all that can be known without running, and a clear no to running."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

import outlay

pytestmark = pytest.mark.newest

BATCH = {"x": np.ones((32, 64), np.float32)}


def init_params(key: Any) -> Any:
    return {"up": jax.random.normal(key, (64, 256)), "down": jax.random.normal(key, (256, 64))}


def loss(params: Any, batch: Any, keys: Any) -> Any:
    hidden = jnp.tanh(jnp.matmul(batch["x"], params["up"]))
    return ((jnp.matmul(hidden, params["down"]) - batch["x"]) ** 2).mean(-1), {}


def made(target: str, mode: Any = "auto", layout: Any = None) -> outlay.Program:
    explicit = mode == "explicit"
    optimizer = optax.adam(1e-3)
    return outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        BATCH,
        layout=layout or (outlay.data_parallel() if explicit else outlay.fsdp(min_size=8) + outlay.data_parallel()),
        mesh=outlay.mesh(data=8, target=target, explicit=explicit),
        mode="auto" if explicit else mode,
    )


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.compiles
@needs_gpu_compiler
@pytest.mark.parametrize("mode", ["auto", "manual", "explicit"])
def test_every_mode_compiles_for_gpus_that_are_not_there(mode: Any) -> None:
    program = made("h100:1x8", mode)
    text = program.compiled.as_text()
    assert text is not None
    # What FSDP asks for, and the CPU compiler never shows.
    assert ("all-reduce" if mode == "explicit" else "reduce-scatter") in text
    memory = program.compiled.memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes >= max(program.plan.bytes_per_device.values())
    assert program.plan.mesh.target == "h100:1x8"
    assert "(8 compile-only devices of h100:1x8)" in str(program.plan)
    assert "(8 compile-only devices of h100:1x8)" in str(outlay.show(program))


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@needs_gpu_compiler
@pytest.mark.parametrize(
    "target",
    [
        "v100-16gb:2x4",
        *(pytest.param(name, marks=pytest.mark.any_jax) for name in ("a100-40gb:1x8", "a100-80gb:1x8", "h200:1x8")),
        "b200:1x8",
    ],
)
def test_every_gpu_that_is_built_in_is_compiled_for(target: str) -> None:
    assert "all-gather" in (made(target).compiled.as_text() or "")


def test_hardware_without_a_compiler_says_what_can_be_done_instead() -> None:
    with pytest.raises(outlay.OutlayError, match=r"no compiler for AMD Instinct MI300X.*\n  fix: .* cpu:8.*mi300x:1x8"):
        outlay.mesh(data=8, target="mi300x:1x8")


@needs_tpu_compiler
def test_both_devices_of_a_chip_are_in_the_mesh() -> None:
    mesh = outlay.mesh(data=4, model=2, target="tpu-ironwood:2x2x1")
    pairs = [[(*device.coords, device.core_on_chip) for device in row] for row in mesh.devices]
    assert all(a[:3] == b[:3] and (a[3], b[3]) == (0, 1) for a, b in pairs), "the inner axis is a chip"


@needs_tpu_compiler
def test_a_program_is_lowered_for_tpus_that_are_not_there() -> None:
    assert "sdy.mesh" in made("tpu-v5e:2x4").lowered.as_text()


@pytest.mark.any_jax
@pytest.mark.compiles
@needs_tpu_compiler
def test_a_program_for_several_slices_is_explained_and_priced() -> None:
    """Its gradients are summed over the network, each device with its like in the other slice."""
    target, optimizer = "tpu-v5e:2x2*2", optax.adam(1e-3)
    init = outlay.init_state(init_params, optimizer)
    mesh = outlay.mesh("data=2,fsdp=4@host", target=target)
    step = outlay.train_step(loss, optimizer, accumulate=2)
    explanation = outlay.explain(outlay.program(step, init, BATCH, layout=outlay.layout.hsdp(min_size=8), mesh=mesh))
    across = [one for one in explanation.collectives if one.axes == ("data",)]
    assert across
    assert all(one.kind == "all-reduce" and one.crosses_hosts and one.group_size == 2 for one in across)
    part = 2 * 64 * 256 * 4 / 4
    a_step = sum(one.operand_bytes * one.count for one in across)
    assert part <= a_step < 2 * part, "a device's part of all gradients, once for both microbatches"
    assert explanation.estimate is not None
    assert explanation.estimate.num_devices == 8


@needs_gpu_compiler
def test_nothing_runs_on_devices_that_are_not_there() -> None:
    program = made("h100:1x8")
    why = r"its 8 devices are compile-only \(h100:1x8\): .*\n  fix: .*outlay.explain\(program\).*\n  or run .*'cpu:8'"
    with pytest.raises(outlay.errors.ProgramError, match=f"a state cannot be made on this mesh: {why}"):
        program.init(jax.random.key(0))
    state = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype) if leaf.ndim else 0, init_params(jax.random.key(0))
    )
    with pytest.raises(outlay.errors.ProgramError, match=f"a step cannot run on this mesh: {why}"):
        program(state, BATCH)
    plan = outlay.fsdp(min_size=8).plan(state, program.mesh)
    for place in (outlay.arrays.put, outlay.arrays.reshard):
        with pytest.raises(outlay.errors.ProgramError, match=f"arrays cannot be put on this mesh: {why}"):
            place(state, plan, program.mesh)
