"""A float16 or bfloat16 Brain rounds after every operation: NumPy, which does, gets the same bits."""

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brain_tests.contract.narrow_transcription import SIGNALS, Narrow, narrow_brain

from outlay.brain.rounding import rounds_each
from outlay.brain.run.run_brain import run_brain
from outlay.core.paths import flatten_paths

NUM_STEPS = 200
"""As many as one call of the compiled loop takes."""


def drawn_inputs(dtype):
    random = np.random.default_rng(0)
    wander = 0.9 * np.sin(np.cumsum(random.normal(0, 0.1, (NUM_STEPS, SIGNALS)), 0))
    return {"signal": wander.astype(dtype), "modulation": random.uniform(0, 1, (NUM_STEPS, 1)).astype(dtype)}


def transcribed(dtype, state, inputs):
    """Spikes and actions of all steps, and the last state, which is computed in place."""
    numpy, steps = Narrow(dtype), []
    for signal, modulation in zip(inputs["signal"], inputs["modulation"], strict=True):
        steps.append({name: x.copy() for name, x in numpy.step(state, signal, modulation).items()})
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("dtype", "kernels"), [("float16", ("jax", "fast-cpu")), ("bfloat16", ("jax",))])
def test_numpy_gets_the_same_bits(dtype, kernels):
    """With the rules that it has in bfloat16, test_fast_cpu.py compares machine code."""
    dtype = np.dtype(dtype)
    brain, inputs = narrow_brain(dtype.name), drawn_inputs(dtype)
    start = jax.device_get(jax.jit(brain.init)(jax.random.key(0)))
    state = copy.deepcopy(start)
    expected = transcribed(dtype, state, inputs)
    for name in ("spiker", "zenke", "quadruplet", "oja"):
        assert (expected[name] != 0).sum() > 200, f"{name} hardly spikes: little is compared"
    last = dict(flatten_paths(state)[0])
    for kernel in kernels:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no population falls back
            run = run_brain(brain, steps=NUM_STEPS, inputs=inputs, state=start, kernel=kernel, record=["*:*spikes"])
        for address in run.recording:
            right = expected[address.partition(":")[0]]
            wrong = int((run[address] != right).sum())
            assert wrong == 0, f"{kernel}: {wrong} spikes of {right.size} are others in {address}"
        np.testing.assert_array_equal(run.outputs["action"], expected["integrator"], kernel)
        for path, leaf in flatten_paths(run.state)[0]:
            np.testing.assert_array_equal(np.asarray(leaf), last[path], f"{kernel}: {path}")


@pytest.mark.parametrize("name", ["exp", "tanh", "sin"])
def test_of_each_float16_a_function_is_that_of_numpy_rounded(name):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    function = rounds_each(getattr(jnp, name), "float16")
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(every.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(jax.jit(function)(every), expected)


def test_numbers_are_rounded_one_by_one_where_xla_sees_that_they_are_numbers():
    """LLVM knows that what comes from whole numbers is a number, and so that a comparison with itself is true."""
    count, trace = np.arange(1, 61), np.linspace(0, 6, 60).astype(np.float16)

    def traced(trace, count):
        return jnp.float16(0.9) * trace + jnp.float16(0.1) * count.astype(jnp.float16)

    rounded = np.asarray(jax.jit(rounds_each(traced, "float16"))(trace, count))
    expected = np.float16(0.9) * trace + np.float16(0.1) * count.astype(np.float16)
    np.testing.assert_array_equal(rounded, expected)


def test_inside_of_loops_branches_and_rules_of_derivatives_too():
    @jax.custom_jvp
    def product(x):
        return jnp.float16(1.1) * x

    product.defjvps(lambda tangent, result, x: 3 * tangent)

    def function(x):
        x = jax.lax.scan(lambda x, _: (x * x + product(x), None), x, None, length=2)[0]
        x = jax.lax.while_loop(lambda x: (x < 3).all(), lambda x: product(x) + x, x)
        return jax.lax.cond(x[0] > 100, lambda x: x, lambda x: x / jnp.float16(3) - product(x) ** 3, x)

    x = y = np.linspace(0.1, 0.3, 50).astype(np.float16)
    for _ in range(2):
        y = y * y + np.float16(1.1) * y
    while (y < 3).all():
        y = np.float16(1.1) * y + y
    power = np.float16(1.1) * y
    rounded = rounds_each(function, "float16")
    np.testing.assert_array_equal(jax.jit(rounded)(x), y / np.float16(3) - power * power * power)
    assert jax.grad(rounds_each(lambda x: product(x).sum(), "float16"))(x)[0] == 3


def test_a_module_may_close_over_random_keys_and_use_floats_of_8_bits():
    key, x = jax.random.key(0), np.linspace(0, 1, 16).astype(np.float16)

    def function(x):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, x.astype(jnp.float8_e4m3fn).astype(x.dtype))

    np.testing.assert_array_equal(jax.jit(rounds_each(function, "float16"))(x), jax.jit(function)(x))


def test_a_function_may_close_over_what_another_one_traces():
    x, factor = np.linspace(0, 3, 50).astype(np.float16), np.float16(1.1)
    rounded = jax.jit(lambda x, factor: rounds_each(lambda x: factor * x + x, "float16")(x))
    np.testing.assert_array_equal(rounded(x, factor), factor * x + x)


def test_of_float32_the_function_is_left_alone():
    assert rounds_each(jnp.exp, "float32") is jnp.exp
