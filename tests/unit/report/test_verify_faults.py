"""Every planted fault is found, at the right array, and named where the numbers name it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report import faults

import outlay


def verified(step: Any, **options: Any) -> outlay.Verification:
    return outlay.verify(faults.program(step, **options), steps=1, batches=faults.BATCHES)


def test_the_step_without_a_fault_is_the_same() -> None:
    verified(faults.right).raise_if_different()
    verified(faults.right, data=4, model=2).raise_if_different()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (faults.forgotten_pmean, "8.0x: summed where a mean was meant"),
        (faults.double_sum, "64.0x = 8 x 8: summed twice where a mean was meant"),
        (faults.dropped_microbatch, "differs in 6 of 6 entries"),
        (faults.dropped_samples, "differs in 6 of 6 entries"),
        (faults.same_mask_everywhere, "differs in 6 of 6 entries"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_found(step: Any, words: str) -> None:
    found = verified(step)
    assert not found.ok
    assert {leaf.path for leaf in found.leaves if leaf.ok} <= {"key", "outputs.loss"}
    (weights,) = (leaf for leaf in found.leaves if leaf.path == "w")
    assert weights.step == 1
    assert weights.fault.startswith(words)
    with pytest.raises(outlay.VerifyError, match=words):
        found.raise_if_different()


def test_a_fault_over_one_of_two_axes_names_that_axis() -> None:
    found = verified(faults.forgotten_pmean, data=4, model=2)
    assert found.wrong[0].in_words == (
        "state w, step 1: 4.0x: summed where a mean was meant, or summed twice (over data)"
    )


def test_what_is_declared_the_same_but_differs_is_found() -> None:
    found = verified(faults.wrong_out_spec, mode="auto")
    assert found.wrong[0].path == "w"
    assert found.wrong[0].fault.startswith("declared the same on 8 devices, but differs: devices 1-7 hold other bits")


def test_copies_that_differ_where_the_first_device_is_right_are_found_too() -> None:
    """JAX reads a replicated array from its first device, which here holds what one device would."""

    def step(state: Any, batch: Any) -> Any:
        plus_place = jax.shard_map(
            lambda w: w + jax.lax.axis_index("data"), in_specs=P(), out_specs=P(), check_vma=False
        )
        return {**state, "w": plus_place(state["w"])}, {}

    (wrong,) = outlay.verify(faults.program(step, mode="auto"), steps=1).wrong
    assert wrong.path == "w"
    assert wrong.fault == "declared the same on 8 devices, but differs: devices 1-7 hold other bits"


def test_a_normalisation_over_each_devices_own_samples_shows_first_in_the_gradients() -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        centred = batch["x"] - batch["x"].mean(axis=0, keepdims=True)
        return (centred @ params["w"] - batch["y"]) ** 2, {}

    optimizer = optax.adam(1e-2)
    init = outlay.init_state(lambda key: {"w": jnp.ones(6)}, optimizer)

    def verified(mode: Any) -> outlay.Verification:
        step, mesh = outlay.train_step(loss, optimizer), outlay.mesh(data=8)
        program = outlay.program(step, init, faults.BATCHES[0], layout=outlay.data_parallel(), mesh=mesh, mode=mode)
        return outlay.verify(program, steps=1, batches=faults.BATCHES)

    assert verified("auto").ok
    assert verified("manual").wrong[0].path == "grads.w"


def test_integers_that_are_counted_on_every_device_are_named() -> None:
    def step(state: Any, batch: Any) -> Any:
        seen = jax.lax.psum(jax.lax.pcast(jnp.int32(8), "data", to="varying"), "data")
        return {**state, "seen": state["seen"] + seen}, {}

    def init(key: Any) -> Any:
        return {"seen": jnp.zeros((), jnp.int32)}

    program = outlay.program(
        step, init, np.ones((8, 2), np.float32), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), mode="manual"
    )
    assert outlay.verify(program, steps=1).wrong[0].fault.startswith("8.0x: ")
