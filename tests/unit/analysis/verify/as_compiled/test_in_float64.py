"""Arrays whose rounding hides a fault are settled in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.verify.as_compiled import compiled_proof
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.in_float64 import scaled, settled
from outlay.analysis.verify.as_compiled.run_compiled import JudgeStoppedError, compute
from outlay.analysis.verify.verification import LeafCheck

RIGHT = np.linspace(1.0, 2.0, 8)
KEY = ("state", "params.w")
DOUBTFUL = LeafCheck(1, *KEY, "float32", 0.1, 0.5, 1.0, 0.1, "rounding", doubt="hidden", is_settled_by_others=True)


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        (RIGHT, "same"),
        (RIGHT * (1 + 1e-9), "same"),
        (RIGHT * 1.01, "unknown"),
        (np.where(np.arange(8) == 3, np.nan, RIGHT), "unknown"),
        (RIGHT[:4], "unknown"),
    ],
)
def test_what_is_the_same_in_float64_is_the_same_and_what_differs_stays_unknown(got, verdict):
    (one,) = settled((DOUBTFUL,), {KEY: got}, {KEY: RIGHT}, {"params.w": np.zeros(8)})
    assert one.verdict == verdict
    assert (one.note == "in float64") == (verdict == "same")


def test_a_fault_and_what_no_number_of_this_step_can_tell_are_left():
    others = (
        LeafCheck(1, *KEY, "float32", 0.1, 0.5, 1.0, 0.1, "rounding", fault="differs", is_settled_by_others=True),
        LeafCheck(1, *KEY, "float32", 0.1, 0.5, 1.0, 0.1, "finite numbers", doubt="not finite"),
        LeafCheck(1, "output", "outputs.loss", "float32", 0.1, 0.5, 1.0, 0.1, "rounding", doubt="hidden"),
    )
    assert settled(others, {KEY: RIGHT}, {KEY: RIGHT}, {"params.w": np.zeros(8)}) == others


def test_the_first_step_settles_the_same_array_of_later_ones():
    later = replace(DOUBTFUL, step=3)
    assert [one.verdict for one in settled((later,), {KEY: RIGHT}, {KEY: RIGHT}, {})] == ["same"]
    assert settled((later,), {KEY: RIGHT * 1.01}, {KEY: RIGHT}, {}) == (later,)


@pytest.mark.parametrize(
    ("got", "factor"),
    [
        (1 + RIGHT * 1.001, "scaled: every update that differs is 1.001 times what it should be"),
        (1 - RIGHT, "is -1 times"),
        (1 + RIGHT, ""),
        (1 + RIGHT * np.linspace(1.0, 1.1, 8), ""),
        (np.full(8, np.nan), ""),
    ],
)
def test_an_update_that_is_scaled_is_told_by_its_factor(got, factor):
    sentence = scaled([KEY], {KEY: got}, {KEY: 1 + RIGHT}, {"params.w": np.ones(8)})
    assert factor in sentence
    assert bool(sentence) == bool(factor)


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@needs_gpu_compiler
@pytest.mark.parametrize(("planted", "verdict"), [("", "same"), ("fault", "unknown"), ("crash", "unknown")])
def test_a_step_that_is_smaller_than_its_rounding_is_judged(monkeypatch, planted, verdict):
    """Sums of bfloat16 that cancel: no comparison of rounded numbers tells anything."""
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(64, 8)).astype(np.float32)
    batch -= batch.mean(axis=0) * (1 - 1e-4)

    def step(state, batch):
        sums = jnp.sum(batch.astype(jnp.bfloat16), axis=0, dtype=jnp.bfloat16).astype(jnp.float32)
        return state - sums, {"loss": jnp.mean(jnp.square(batch))}

    mesh = outlay.mesh(data=2, target="h100:1x2")
    program = outlay.program(step, lambda: jnp.zeros(8), batch, layout=outlay.data_parallel(), mesh=mesh)
    times = []

    def here(job):
        times.append(job.is_wide)
        if planted == "crash" and job.is_wide:
            raise JudgeStoppedError("exit code -9: it said nothing")
        text = job.text.replace("subtract(", "add(") if planted and job.is_wide else job.text
        with jax.enable_x64(True):
            return compute(replace(job, text=text))

    monkeypatch.setattr(compiled_proof, "run_apart", here)
    proof = CompiledProof(program, 1, None, lambda stage: None).of(None, [batch])
    assert times == [False, True]
    assert proof.verdict == verdict, str(proof)
    assert proof.checks  # what was known before stays
