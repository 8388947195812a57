"""A state that is split by neuron is initialized by rows: no device makes the whole."""

import jax
import numpy as np
import pytest

import outlay
from outlay.brain import (
    AdaptiveLeakySoma,
    Brain,
    Connection,
    GivenKernel,
    KernelFile,
    LeakySoma,
    LinearSynapses,
    LogNormal,
    N2NDelays,
    Neuron,
    Normal,
    NormalizedSparseUniform,
    PoissonSpiker,
    SparseUniform,
    TracedSynapses,
    Uniform,
    ZenkeRule,
)
from outlay.core.paths import flatten_paths
from outlay.graph import GraphLoop, InitByRows
from outlay.layout import by_rows
from outlay.program.by_rows import by_rows as split

NUM, UNITS = 4, 27


def brain(folder, units: int = UNITS) -> Brain:
    kernel = np.random.default_rng(0).normal(size=(units, 3)).astype(np.float32)
    np.save(folder / "k.npy", kernel)
    soma = LeakySoma(threshold=tuple(np.linspace(-45, -40, units)))
    kernels = {
        "uniform": Uniform(3.0),
        "sparse": SparseUniform(2.0, density=0.4, min_value=0.1),
        "normal": Normal(0.3, 0.7, density=0.6),
        "log": LogNormal(0.1, 0.4),
        "file": KernelFile(str(folder / "k.npy")),
        "given": GivenKernel(kernel),
        "rows": NormalizedSparseUniform(norm_axes=(1,)),
        "columns": NormalizedSparseUniform(),
    }
    plain = {name: Neuron(units, 0.3, soma, TracedSynapses(of)) for name, of in kernels.items()}
    rule = Neuron(units, 0.5, AdaptiveLeakySoma(), LinearSynapses(Uniform()), N2NDelays(), ZenkeRule())
    modules = {**plain, "rule": rule}
    ends = [Connection("eye:spikes", f"{name}:in_spikes") for name in modules]
    return Brain({"eye": PoissonSpiker(), **modules}, [Connection("inputs:x", "eye:signal"), *ends], inputs={"x": (3,)})


def split_of(model: Brain, init):
    mesh = outlay.mesh(n=NUM, devices=jax.devices()[:NUM])
    step = split(GraphLoop(model.graph), init, by_rows("n"), mesh, "manual")
    assert step is not None
    return step


@pytest.mark.thorough  # runs begin so below
def test_every_row_is_what_one_device_makes_bit_for_bit(tmp_path):
    model = brain(tmp_path)
    assert [name for name, module in model.modules.items() if not module.makes_rows] == ["eye", "columns"]
    step = split_of(model, InitByRows(model.init, model.init_rows))
    made = step.rows.crop(jax.jit(step.init)(jax.random.key(3)))
    whole = jax.jit(model.init)(jax.random.key(3))
    for (path, leaf), (_, expected) in zip(flatten_paths(made)[0], flatten_paths(whole)[0], strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(expected), err_msg=path)


def test_no_device_makes_a_whole_kernel():
    units = 2048
    model = Brain(
        {"n": Neuron(units, synapses=LinearSynapses(Uniform()))},
        [Connection("n:out_spikes", "n:in_spikes")],
    )
    init = InitByRows(model.init, model.init_rows)
    needed = [
        jax.jit(split_of(model, each).init).lower(jax.random.key(0)).compile().memory_analysis().temp_size_in_bytes
        for each in (model.init, init)
    ]
    whole = 4 * units**2
    assert needed[0] >= whole, "the test can see it"
    assert needed[1] < whole


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("layout", ["by-neuron", outlay.by_module({"a": [0, 1], "eye": 0})])
def test_runs_begin_so(layout):
    model = Brain(
        {"eye": PoissonSpiker(), "a": Neuron(5, 0.4, LeakySoma(resistance=1.0), LinearSynapses(Normal(20.0, 9.0)))},
        [Connection("inputs:x", "eye:signal"), Connection("eye:spikes", "a:in_spikes")],
        inputs={"x": (3,)},
    )
    options = {"steps": 20, "inputs": {"x": 1.0}, "record": ["a.**"], "seed": 4}
    one, several = (outlay.brain.run_brain(model, layout=each, **options) for each in (None, layout))
    for address in one.recording:
        np.testing.assert_array_equal(one[address], several[address])
