"""Every planted fault is found, at the right array, and named where the numbers name it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.verify import verify_programs as programs
from tests.unit.report import faults

import outlay

pytestmark = pytest.mark.compiles


def verified(step: Any, **options: Any) -> outlay.analysis.Verification:
    return outlay.verify(faults.program(step, **options), steps=1, batches=faults.BATCHES)


def test_the_step_without_a_fault_is_the_same() -> None:
    verified(faults.right, data=4, model=2).raise_if_different()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (faults.forgotten_pmean, "8.0x: summed where a mean was meant"),
        (faults.double_sum, "64.0x = 8 x 8: summed twice where a mean was meant"),
        (faults.dropped_samples, "differs in 6 of 6 entries"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_found(step: Any, words: str) -> None:
    verification = verified(step)
    assert not verification.ok
    assert {leaf.path for leaf in verification.leaves if leaf.ok} <= {"key", "outputs.loss"}
    (weights,) = (leaf for leaf in verification.leaves if leaf.path == "w")
    assert weights.step == 1
    assert weights.fault.startswith(words)
    with pytest.raises(outlay.errors.VerifyError, match=words):
        verification.raise_if_different()


def test_a_fault_over_one_of_two_axes_names_that_axis() -> None:
    verification = verified(faults.forgotten_pmean, data=4, model=2)
    assert verification.wrong[0].in_words == (
        "state w, step 1: 4.0x: summed where a mean was meant, or summed twice (over data)"
    )


def test_what_is_declared_the_same_but_differs_is_found() -> None:
    verification = verified(faults.wrong_out_spec, mode="auto")
    assert verification.wrong[0].path == "w"
    assert verification.wrong[0].fault.startswith(
        "declared the same on 8 devices, but differs: devices 1-7 hold other bits"
    )


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


@pytest.mark.thorough  # faults are found above
def test_a_normalisation_over_each_devices_own_samples_shows_first_in_the_gradients() -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        centred = batch["x"] - batch["x"].mean(axis=0, keepdims=True)
        return (centred @ params["w"] - batch["y"]) ** 2, {}

    optimizer = optax.adam(1e-2)
    init = outlay.init_state(lambda key: {"w": jnp.ones(6)}, optimizer)

    def verified(mode: Any) -> outlay.analysis.Verification:
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


def drawn_by_device(params: Any, batch: Any, key: Any) -> Any:
    """Dropout that is right, with other numbers than one device draws."""
    return programs.same_numbers_everywhere(params, batch, jax.random.fold_in(key, jax.lax.axis_index("data")))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (programs.summed, "the results of 8 devices are summed, where their mean was meant"),
        (programs.first_device_only, "only the samples of share 1 of 8 (the device at data=0) count"),
        (programs.last_device_dropped, "the samples of share 8 of 8 (the device at data=7) are left out"),
        (programs.undivided_microbatches, "the step sums over its samples or microbatches and does not divide"),
        (programs.same_numbers_everywhere, "every device draws the same random numbers"),
        (programs.local_statistics, "something is computed over each device's own samples that is meant over all"),
        (programs.clipped_locally, "something is computed over each device's own samples that is meant over all"),
        (programs.unequal_means, "as if all had as many samples; the devices count for"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_cause_that_the_numbers_confirm_is_named(fault: Any, cause: str) -> None:
    program = programs.program({"a": fault}, jnp.float32)
    verification = outlay.verify(program, steps=1, batches=programs.batches(1))
    assert verification.verdict == "different"
    assert len(verification.causes) == 1
    assert cause in verification.causes[0]
    assert f"cause: {verification.causes[0]}" in " ".join(str(verification).split())


def test_random_numbers_of_each_device_are_explained_and_no_fault() -> None:
    program = programs.program({"a": drawn_by_device}, jnp.float32)
    verification = outlay.verify(program, steps=1, batches=programs.batches(1))
    assert verification.verdict == "unknown"
    assert "with equal numbers one device computes the same" in verification.reasons[0]
    assert "key them by sample" in verification.reasons[0]


def thinned(params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """A batch with dropout that is right, and the gradients of each device."""
    drawn = jax.random.bernoulli(jax.random.fold_in(key, jax.lax.axis_index("data")), 0.5, batch["x"].shape)
    batch = {**batch, "x": jnp.where(drawn, batch["x"], 0)}
    return batch, programs.local_gradients(params, batch)


def dropout_and_sum_of_the_bias(params: Any, batch: Any, key: Any) -> Any:
    grads = thinned(params, batch, key)[1]
    return programs.descend(params, {"w": programs.pmean(grads["w"]), "b": jax.lax.psum(grads["b"], "data")}), {}


def dropout_and_unequal_means(params: Any, batch: Any, key: Any) -> Any:
    return programs.unequal_means(params, thinned(params, batch, key)[0], key)


@pytest.mark.thorough  # random numbers are explained above
@pytest.mark.parametrize(
    ("fault", "wrong", "cause"),
    [
        (dropout_and_sum_of_the_bias, {"a.b"}, "are summed, where their mean was meant"),
        (dropout_and_unequal_means, {"a.b", "a.w"}, "as if all had as many samples"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_dropout_by_device_explains_no_other_fault(fault: Any, wrong: set[str], cause: str) -> None:
    verification = outlay.verify(programs.program({"a": fault}, jnp.float32), steps=1, batches=programs.batches(1))
    assert {check.path for check in verification.wrong} == wrong
    assert cause in verification.causes[0]


def dropout_and_clipping(params: Any, batch: Any, key: Any) -> Any:
    """Right: the norm is that of all, so the update is not a mean of what each device computes alone."""
    grads = programs.pmean(thinned(params, batch, key)[1])
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return programs.descend(params, jax.tree.map(lambda g: g * jnp.minimum(1, 0.1 / norm), grads)), {}


@pytest.mark.thorough  # random numbers of each device are explained below
def test_dropout_by_device_is_explained_whatever_follows_it() -> None:
    entries = {"a": dropout_and_clipping, "b": programs.drawn_from_gamma}
    verification = outlay.verify(programs.program(entries, jnp.float32), steps=1, batches=programs.batches(1))
    assert verification.verdict == "unknown"
    assert all("with equal numbers one device computes the same" in reason for reason in verification.reasons)


def of_large_values(params: Any, batch: Any, key: Any) -> Any:
    """A fault that only batches with a large value show."""
    grads, largest = programs.local_gradients(params, batch), jax.lax.pmax(jnp.abs(batch["x"]).max(), "data")
    wrong = jax.lax.psum(grads, "data")
    grads = jax.tree.map(lambda a, b: jnp.where(largest > 6, a, b), wrong, programs.pmean(grads))
    return programs.descend(params, grads), {}


def test_a_fault_that_few_batches_show_is_found_with_made_up_ones() -> None:
    verification = outlay.verify(programs.program({"a": of_large_values}, jnp.float32), steps=1)
    assert verification.wrong[0].step > 1
    assert "are summed, where their mean was meant" in verification.causes[0]


def counted(step: Any) -> outlay.Program:
    def init(key: Any) -> Any:
        return {"count": jnp.zeros((), jnp.int32), "w": jnp.ones(4), "scale": jnp.zeros(4)}

    batch = np.ones((16, 4), np.float32)
    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)
    return outlay.program(step, init, batch, layout=layout, mesh=mesh, mode="manual")


@pytest.mark.thorough  # faults of the first step are found above
def test_a_fault_of_a_later_step_is_found() -> None:
    def step(state: Any, batch: Any) -> Any:
        count, mean = state["count"] + 1, batch.mean(0)
        total = jnp.where(count % 10 == 0, jax.lax.psum(mean, "data"), jax.lax.pmean(mean, "data"))
        return {**state, "count": count, "w": state["w"] - 0.1 * total}, {}

    verification = outlay.verify(counted(step), steps=2)
    assert [(check.path, check.step) for check in verification.wrong] == [("w", 10)]


@pytest.mark.thorough  # other faults are found above
def test_a_fault_behind_what_begins_at_zero_is_found() -> None:
    def step(state: Any, batch: Any) -> Any:
        hidden = jax.lax.psum(state["scale"] * batch.mean(0), "data")  # zero while the scale is
        return {**state, "w": state["w"] - 0.1 * hidden, "count": state["count"] + 1}, {}

    verification = outlay.verify(counted(step), steps=2)
    assert verification.wrong[0].fault.startswith("8.0x: summed where a mean was meant")


@pytest.mark.thorough  # causes are named above
def test_what_moves_by_its_sign_alone_names_no_cause() -> None:
    def signed(params: Any, batch: Any, key: Any) -> Any:
        """The bias moves by a sign, that of some device's own samples; the weights by a sum for a mean."""
        sign = jnp.sign(jax.lax.pmax(jnp.mean(batch["x"]) - 0.05, "data"))
        grads = jax.lax.psum(programs.local_gradients(params, batch)["w"], "data")
        return {"b": params["b"] - 1e-3 * sign, "w": params["w"] - 1e-3 * grads}, {}

    verification = outlay.verify(programs.program({"a": signed}, jnp.float32), steps=1, batches=programs.batches(1))
    assert "are summed, where their mean was meant" in verification.causes[0]


def rows(key: Any) -> Any:
    return {"w": jnp.sin(jnp.arange(64.0)).reshape(16, 4)}


def split_by_rows(step: Any) -> outlay.analysis.Verification:
    batch = {"x": programs.batches(1)[0]["x"]}
    layout = outlay.Layout([("w", P("data"))]) + outlay.data_parallel()
    program = outlay.program(step, rows, batch, layout=layout, mesh=outlay.mesh(data=8), mode="manual")
    return outlay.verify(program, steps=1, batches=[batch])


def test_an_exchange_in_the_wrong_direction_is_named() -> None:
    def step(state: Any, batch: Any) -> Any:
        size, w = jax.lax.axis_size("data"), state["w"]
        right = [(i, (i + 1) % size) for i in range(size)]
        before, after = (jax.lax.ppermute(x, "data", right) for x in (w[-1:], w[:1]))  # the second should go left
        around = jnp.concatenate([before, w, after])
        return {"w": w + 0.1 * (around[:-2] - 2 * w + around[2:])}, {}

    assert split_by_rows(step).causes == (
        "jax.lax.ppermute goes the wrong way, number 2 of 2: with its pairs reversed, all is right",
    )


def test_clipping_by_the_norm_of_a_piece_is_named() -> None:
    def step(state: Any, batch: Any) -> Any:
        grads = state["w"] + jax.lax.pmean(batch["x"].mean(), "data")
        return {"w": state["w"] - 0.1 * grads / jnp.sqrt((grads**2).sum())}, {}

    assert "clipped by the norm of each device's own piece" in split_by_rows(step).causes[0]


@pytest.mark.thorough  # copies that differ are found above
def test_copies_that_follow_from_each_devices_samples_or_stay_old_are_named() -> None:
    def step(state: Any, batch: Any, stale: bool) -> Any:
        def local(w: Any, x: Any) -> Any:
            if not stale:
                return w - 0.1 * x.mean()
            size = len(w) // jax.lax.axis_size("data")
            start = jax.lax.axis_index("data") * size
            fresh = jax.lax.dynamic_slice_in_dim(w - 0.1, start, size)
            return jax.lax.dynamic_update_slice_in_dim(w, fresh, start, 0)

        update = jax.shard_map(local, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
        return {"w": update(state["w"], batch["x"])}, {}

    def causes(stale: bool) -> tuple[str, ...]:
        batch = {"x": programs.batches(1)[0]["x"]}
        program = outlay.program(
            lambda s, b: step(s, b, stale), rows, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
        )
        return outlay.verify(program, steps=1, batches=[batch]).causes

    assert causes(False) == ("each device's w follows from its own samples: it is not summed or averaged over data",)
    assert "each device's copy of w is stale except for its own part: up to 56 of 64 entries" in causes(True)[0]
