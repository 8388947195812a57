"""To NIR and back: the same spikes, and what does not fit is listed."""

import dataclasses

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays
from outlay.brain.files.convert import convert_brain
from outlay.brain.files.nir_read import read_nir
from outlay.brain.files.nir_write import write_nir
from outlay.brain.files.read_brain import read_brain
from outlay.brain.initializers import GivenKernel, Uniform
from outlay.brain.learning_rules.hebbian import HebbianRule
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.reshape import Concat
from outlay.brain.somas.leaky import AdaptiveLeakySoma, LeakySoma
from outlay.brain.synapses import LinearSynapses, TracedSynapses

BRAIN = Brain(
    {
        "A": Neuron(5, 0.4, soma=LeakySoma(resistance=0.5), synapses=TracedSynapses(Uniform(20.0))),
        "B": Neuron(3, soma=LeakySoma(resistance=0.5), synapses=LinearSynapses(Uniform(40.0))),
    },
    [
        Connection("inputs:x", "A:in_spikes"),
        Connection("B:out_spikes", "A:in_spikes", 1.5),
        Connection("A:out_spikes", "B:in_spikes"),
        Connection("A:out_spikes", "A:in_spikes", 1.0),
    ],
    inputs={"x": (2, 3)},
    outputs={"seen": "B:out_spikes"},
    dt=0.5,
)
SPIKES = np.random.default_rng(0).integers(0, 2, (200, 6), dtype=np.int8)


def spikes(brain: Brain, state, inputs=SPIKES) -> np.ndarray:
    (shape,) = brain.inputs.values()

    def step(state, x):
        return brain.step(state, {"x": x})

    return np.asarray(jax.lax.scan(step, state, jnp.asarray(inputs).reshape(-1, *shape))[1]["seen"])


@pytest.fixture(scope="module")
def state():
    """A state of BRAIN."""
    return BRAIN.init(jax.random.key(0))


@pytest.fixture(scope="module")
def expected(state):
    """Its spikes."""
    return spikes(BRAIN, state)


@pytest.mark.compiles
def test_there_and_back_the_spikes_are_the_same(tmp_path, state, expected):
    write_nir(BRAIN, state, tmp_path / "model.nir")
    model = read_nir(tmp_path / "model.nir", dt=0.5)
    assert expected.sum() > 100
    np.testing.assert_array_equal(spikes(model.brain, model.init(jax.random.key(1))), expected)


def test_the_nodes_say_what_nir_means_by_them(tmp_path, state):
    write_nir(BRAIN, state, tmp_path / "model.nir")
    graph = nir.read(tmp_path / "model.nir")
    lif = graph.nodes["B"]
    assert isinstance(lif, nir.LIF)
    np.testing.assert_allclose(
        [lif.tau[0], lif.r[0], lif.v_leak[0], lif.v_threshold[0], lif.v_reset[0]], [0.02, 10.0, -60.0, -40.0, -50.0]
    )
    assert isinstance(graph.nodes["A"], nir.CubaLIF)
    (delay,) = [node.delay for name, node in graph.nodes.items() if name == "B_to_A_1_delay"]
    np.testing.assert_allclose(
        delay, np.full(3, 0.001), rtol=1e-6
    )  # 1.5 ms without the step that every connection takes
    sign = np.where(state["A"]["inhibitory"], -1, 1)
    kernel = np.asarray(state["B"]["synapses"]["kernel"])
    np.testing.assert_allclose(graph.nodes["A_to_B_0"].weight, kernel * sign)


def test_a_graph_of_another_tool_is_read(tmp_path):
    weight = np.array([[30.0, 0], [0, 30.0], [10.0, 10.0]], np.float32)
    membrane = {"r": np.full(3, 1.0), "v_leak": np.zeros(3), "v_threshold": np.full(3, 1.0)}
    nodes = {
        "input": nir.Input({"input": np.array([2])}),
        "0": nir.Affine(weight, np.zeros(3)),
        "fc": nir.Linear(weight),
        "1.lif": nir.LIF(tau=np.full(3, 0.01), **membrane),
        "out": nir.Output({"output": np.array([3])}),
    }
    edges = [("input", "0"), ("input", "fc"), ("0", "1.lif"), ("fc", "1.lif"), ("1.lif", "out")]
    nir.write(tmp_path / "model.nir", nir.NIRGraph(nodes, edges))
    model = read_nir(tmp_path / "model.nir")
    soma = LeakySoma(0.0, 0.0, 10.0, 0.1, 1.0)
    assert dict(model.brain.modules) == {
        "n1_lif": Neuron(3, soma=soma, synapses=LinearSynapses(GivenKernel(2 * weight)), graded=True)
    }
    assert dict(model.brain.outputs) == {"out": "n1_lif:out_spikes"}
    np.testing.assert_array_equal(model.kernels["n1_lif"], 2 * weight)  # both ways add up


def test_what_nir_does_not_know_is_listed(tmp_path):
    learning = dataclasses.replace(
        BRAIN.modules["A"], soma=AdaptiveLeakySoma(), delays=N2NDelays(), learning_rule=HebbianRule()
    )
    synapses = TracedSynapses(base=1.0)
    brain = Brain(
        {"A": learning, "B": dataclasses.replace(BRAIN.modules["B"], synapses=synapses), "C": Concat()},
        [*BRAIN.connections, Connection("B:out_spikes", "C:inputs")],
        inputs=BRAIN.inputs,
        outputs={"seen": "C:output"},
        dt=0.5,
    )
    with pytest.raises(BrainError, match="6 problem") as error:
        write_nir(brain, {}, tmp_path / "model.nir")
    assert [p.where for p in error.value.problems] == [
        "A.soma",
        "A.delays",
        "A.learning_rule",
        "B.synapses",
        "C",
        "outputs.seen",
    ]
    assert not (tmp_path / "model.nir").exists()


def test_what_a_brain_does_not_know_is_listed(tmp_path):
    membrane = {"r": np.ones(2), "v_leak": np.zeros(2)}
    nodes = {
        "in": nir.Input({"input": np.array([2])}),
        "bias": nir.Affine(np.eye(2), np.ones(2)),
        "uneven": nir.LIF(tau=np.array([0.01, 0.02]), v_threshold=np.ones(2), **membrane),
        "late": nir.Delay(np.array([0.001, 0.002])),
        "li": nir.LI(tau=np.full(2, 0.01), **membrane),
        "out": nir.Output({"output": np.array([2])}),
    }
    edges = [("in", "bias"), ("bias", "uneven"), ("uneven", "late"), ("late", "li"), ("li", "out")]
    nir.write(tmp_path / "model.nir", nir.NIRGraph(nodes, edges))
    with pytest.raises(BrainError, match="3 problem") as error:
        read_nir(tmp_path / "model.nir")
    assert {p.where.rpartition(" ")[2]: p.what for p in error.value.problems} == {
        "bias": "it adds a bias, and synapses only multiply",
        "late": "its delays differ from each other, and a connection has one",
        "li": "a Brain knows no LI",
    }


def test_a_file_that_is_no_nir(tmp_path):
    (tmp_path / "model.nir").write_text("nothing")
    with pytest.raises(BrainError, match=r"a whole file that nir\.write has written"):
        read_nir(tmp_path / "model.nir")


def test_converting_keeps_the_kernels_beside_the_toml(tmp_path, state, expected):
    write_nir(BRAIN, state, tmp_path / "model.nir")
    written = convert_brain(tmp_path / "model.nir", tmp_path / "model.toml", dt=0.5)
    assert [file.name for file in written] == ["model.toml", "model.A.npy", "model.B.npy"]
    brain = read_brain(tmp_path / "model.toml")
    np.testing.assert_array_equal(spikes(brain, brain.init(jax.random.key(5))), expected)
    convert_brain(tmp_path / "model.toml", tmp_path / "again.nir")
    for name, kernel in read_nir(tmp_path / "again.nir", dt=0.5).kernels.items():
        np.testing.assert_array_equal(kernel, np.load(tmp_path / f"model.{name}.npy"))


def test_neurons_that_differ_are_settings_by_neuron_there_and_back(tmp_path):
    membrane = {"r": np.ones(2), "v_leak": np.zeros(2), "v_threshold": np.array([1.0, 2.0]), "v_reset": np.zeros(2)}
    times = {"tau_mem": np.array([0.01, 0.02]), "tau_syn": np.array([0.005, 0.005])}
    nodes = {
        "in": nir.Input({"input": np.array([2])}),
        "w": nir.Linear(np.eye(2)),
        "n": nir.CubaLIF(**times, **membrane, w_in=np.array([1.0, 3.0])),
        "out": nir.Output({"output": np.array([2])}),
    }
    nir.write(tmp_path / "a.nir", nir.NIRGraph(nodes, [("in", "w"), ("w", "n"), ("n", "out")]))
    first = read_nir(tmp_path / "a.nir").brain
    neurons = first.modules["n"]
    assert isinstance(neurons, Neuron)
    assert (neurons.soma.potential_tau, neurons.soma.threshold) == ((10.0, 20.0), (1.0, 2.0))
    assert neurons.soma.resistance == pytest.approx((0.1, 0.05))
    assert neurons.synapses.tau == 5.0
    write_nir(first, first.init(jax.random.key(0)), tmp_path / "b.nir")
    again = read_nir(tmp_path / "b.nir").brain.modules["n"]
    assert again.soma.threshold == (1.0, 2.0)
    assert again.synapses.scale == pytest.approx(neurons.synapses.scale)
