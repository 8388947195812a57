"""Numbers at a port of spikes: refused, or injected as current."""

import math

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest

import outlay
from outlay.brain import (
    Brain,
    Concat,
    Connection,
    Constant,
    LeakySoma,
    LinearSynapses,
    N2NDelays,
    Neuron,
    TracedSynapses,
)
from outlay.brain.module import BrainError

F = np.float32


def brain(**settings) -> Brain:
    neurons = Neuron(4, soma=LeakySoma(resistance=0.1), synapses=LinearSynapses(Constant(50.0)), **settings)
    return Brain(
        {"n": neurons, "m": Neuron(3, 0.4, synapses=TracedSynapses(Constant(9.0)), soma=LeakySoma(resistance=0.1))},
        [
            Connection("inputs:x", "n:in_spikes"),
            Connection("m:out_spikes", "n:in_spikes"),
            Connection("n:out_spikes", "m:in_spikes"),
        ],
        inputs={"x": (2,)},
    )


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("value", [0.9, 200.0, -2, 0.5, float(np.nextafter(F(1), F(2)))])
def test_a_number_that_is_no_spike_is_refused_with_its_step(value):
    x = np.zeros((12, 2), F)
    x[7, 1] = value
    with pytest.raises(
        BrainError, match=r"in step 7 at \[1\].*n:in_spikes reads spikes(.|\n)*graded=True of n"
    ) as error:
        outlay.brain.run_brain(brain(), steps=12, inputs={"x": x}, chunk=5)
    assert [problem.where for problem in error.value.problems] == ["x"]
    model = brain()
    with pytest.raises(BrainError, match="reads spikes"):
        model.step(model.init(jax.random.key(0)), {"x": x[7]})


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_a_traced_step_takes_spikes_as_int8_since_it_cannot_look_at_numbers(dtype):
    model, x = brain(), np.ones((3, 2), dtype)
    state = model.init(jax.random.key(0))
    says = rf'x\n +it is {dtype}, and n:in_spikes reads spikes(.|\n)*fix: x.astype\("int8"\)(.|\n)*graded=True of n'
    with pytest.raises(BrainError, match=says):
        jax.jit(model.step)(state, {"x": x[0]})
    with pytest.raises(BrainError, match=says):
        jax.jit(outlay.graph.GraphLoop(model.graph))(state, {"x": x})
    with pytest.raises(BrainError, match=says):
        outlay.program(
            outlay.graph.GraphLoop(model.graph),
            model.init,
            {"x": x},
            layout=outlay.layout.by_rows("x"),
            mesh="x=-1",
            mode="manual",
        )
    as_run = model.step(state, {"x": x[0]})  # looked at
    for spikes in (x[0].astype(np.int8), x[0].astype(bool)):
        traced = jax.jit(model.step)(state, {"x": spikes})
        for one, other in zip(jax.tree.leaves(traced[0]), jax.tree.leaves(as_run[0]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    graded = brain(graded=True)
    jax.jit(graded.step)(graded.init(jax.random.key(0)), {"x": x[0] * F(0.9)})


def test_a_module_between_them_that_passes_spikes_on_reads_spikes_too():
    model = Brain({"c": Concat()}, [Connection("inputs:x", "c:inputs")], inputs={"x": (2,)})
    with pytest.raises(BrainError, match="c:inputs reads spikes"):
        model.step(model.init(jax.random.key(0)), {"x": jnp.full(2, 0.5)})


@pytest.mark.thorough  # spikes bring the same bits below, and test_neuron_settings.py has the layouts
@pytest.mark.compiles
def test_graded_input_is_current_beside_spikes_in_every_layout():
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(F) * 3
    runs = {
        layout: outlay.brain.run_brain(
            brain(graded=True), steps=60, inputs={"x": x}, record=["**"], layout=layout, mesh=mesh
        )
        for layout, mesh in (
            (None, None),
            ("by-neuron", outlay.mesh(neurons=3, devices=jax.devices()[:3])),
            ("by-module", outlay.mesh(devices=jax.devices()[:2], d=2)),
        )
    }
    one = runs[None]
    assert min(one.rates[name] for name in "nm") > 0
    for run in runs.values():
        for address in one.recording:
            np.testing.assert_array_equal(run[address], one[address], err_msg=address)
    # The first step: nobody has spiked yet.
    decay = math.exp(-1 / 20)
    charged = (1 - decay) * 20 * 0.1 * 50 * x[0].astype(float).sum()
    expected = charged if charged <= 20 else 10
    np.testing.assert_allclose(one["n.soma.potential"][0], np.full(4, expected), rtol=1e-5)


def test_spikes_bring_the_same_bits_to_graded_input():
    x = np.random.default_rng(1).integers(0, 2, (40, 2))
    plain, graded = (
        outlay.brain.run_brain(brain(**of), steps=40, inputs={"x": x}, record=["*.soma.potential"])
        for of in ({}, {"graded": True})
    )
    for address in plain.recording:
        np.testing.assert_array_equal(plain[address], graded[address])


def test_delays_and_rules_know_spikes_only():
    with pytest.raises(BrainError, match=r"graded is true, and its delays, N2NDelays, only knows spikes"):
        brain(graded=True, delays=N2NDelays())


def fired(x: float, steps: int) -> int:
    """Spikes of a leaky neuron of 20 ms that fires above 1 and is driven by 10 x."""
    v, spikes, decay = 0.0, 0, math.exp(-1 / 20)
    for _ in range(steps):
        v = decay * v + (1 - decay) * 10 * x
        if v > 1:
            v, spikes = 0.0, spikes + 1
    return spikes


@pytest.mark.parametrize("x", [0.9, 1.9, -0.5])
def test_an_input_of_nir_is_a_number(tmp_path, x):
    one = np.ones(1, F)
    nodes = {
        "input": nir.Input(input_type={"input": np.array([1])}),
        "w": nir.Linear(np.full((1, 1), 10, F)),
        "n": nir.LIF(tau=0.02 * one, r=one, v_leak=0 * one, v_threshold=one, v_reset=0 * one),
        "output": nir.Output(output_type={"output": np.array([1])}),
    }
    nir.write(tmp_path / "m.nir", nir.NIRGraph(nodes, [("input", "w"), ("w", "n"), ("n", "output")]))
    run = outlay.brain.run_brain(tmp_path / "m.nir", steps=100, inputs={"input": x}, record=["n:out_spikes"])
    assert np.abs(run["n:out_spikes"]).sum() == fired(x, 100)


def test_what_nobody_gives_is_generated_as_what_is_read_and_the_result_says_so():
    run = outlay.brain.run_brain(brain(), steps=30, record=["n.soma.potential"])
    assert run["n.soma.potential"].any()
    assert "\nnote: nothing was given for x: generated" in str(run)
    assert "note:" not in str(outlay.brain.run_brain(brain(), steps=2, inputs={"x": 1}))
