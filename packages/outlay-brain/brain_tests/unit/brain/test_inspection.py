import json

import jax

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import LeakySoma

BRAIN = Brain(
    {"A": Neuron(5, soma=LeakySoma(resistance=0.5)), "out": ExponentialIntegrator(2)},
    [
        Connection("inputs:x", "A:in_spikes"),
        Connection("A:out_spikes", "A:in_spikes"),
        Connection("A:out_spikes", "out:spikes", 3.0),
    ],
    inputs={"x": (2, 3)},
    outputs={"seen": "out:signal"},
)


def test_the_facts_are_those_of_the_state_that_init_makes():
    state = BRAIN.init(jax.random.key(0))
    facts = {module.name: module for module in BRAIN.inspect().modules}
    assert facts["A"].state["synapses.kernel"].shape == state["A"]["synapses"]["kernel"].shape == (5, 11)
    assert facts["A"].num_elements == sum(leaf.size for leaf in jax.tree.leaves(state["A"]))
    assert facts["A"].components["soma"] == "LeakySoma"
    assert facts["A"].settings["soma.resistance"] == "0.5 GOhm/ms"
    assert facts["A"].inputs["in_spikes"].sources == ("inputs:x", "A:out_spikes")


def test_the_tree_shows_settings_with_units_shapes_and_connections():
    text = str(BRAIN.inspect())
    for line in (
        "Brain: 2 modules, steps of 1 ms, float32",
        "reads in_spikes (11,) of inputs:x, A:out_spikes",
        "potential_rest -60 mV, potential_reset -50 mV, potential_tau 20 ms, resistance 0.5 GOhm/ms, threshold -40 mV",
        "kernel (5, 11) float32",
        "writes signal: values (2,)",
    ):
        assert line in text
    assert not any(line.rstrip() != line for line in text.splitlines())


def test_the_facts_are_plain_data():
    data = json.loads(json.dumps(BRAIN.inspect().to_dict()))
    assert data["modules"]["A"]["state"]["soma.potential"] == {"shape": [5], "dtype": "float32"}
    assert data["modules"]["out"]["inputs"]["spikes"] == {"sources": ["A:out_spikes"], "shape": [5]}
