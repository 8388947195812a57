import dataclasses
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import outlay.brain.run
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import NDelays
from outlay.brain.encoders import LinearSpiker, TopologicalPoissonSpiker
from outlay.brain.files.convert import write_brain
from outlay.brain.files.read_brain import read_brain
from outlay.brain.files.toml_read import read_toml
from outlay.brain.files.toml_write import write_toml
from outlay.brain.initializers import KernelFile, SparseUniform
from outlay.brain.learning_rules.hebbian import OjaRule
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.registry import library
from outlay.brain.reshape import Concat, Sampler
from outlay.brain.somas.izhikevich import IzhikevichSoma
from outlay.brain.somas.leaky import LeakySoma
from outlay.brain.synapses import LinearSynapses, TracedSynapses

AB_BRAIN = Path(outlay.brain.run.__path__[0]) / "ab_brain.toml"


def back_and_forth(brain: Brain) -> Brain:
    return read_toml(write_toml(brain, folder=Path()), name="model.toml", folder=Path())


MANY = Brain(
    {
        "eye": TopologicalPoissonSpiker(glue=(True, False), mins=(0.0, -1.5), maxs=2.0, resolution=4),
        "A": Neuron(5, 0.25, soma=LeakySoma(resistance=1 / 3), delays=NDelays(3.0), learning_rule=OjaRule(eta=1e-12)),
        "B": Neuron(7, synapses=TracedSynapses(SparseUniform(2.0, 0.5), tau=4.0), learning_rule=ZenkeRule(a=2.0)),
        "C": Neuron(7, soma=IzhikevichSoma(), synapses=LinearSynapses()),
        "some": Sampler(3),
        "both": Concat(shape=(2, 5)),
        "out": ExponentialIntegrator(2, output_map=(0, 1, 1, 0, 1, 0, 1, 0, 1, 1), smooth_trace=False),
    },
    [
        Connection("inputs:x", "eye:signal"),
        Connection("eye:spikes", "A:in_spikes"),
        Connection("A:out_spikes", "A:in_spikes", 12.5),
        Connection("A:out_spikes", "B:in_spikes"),
        Connection("B:out_spikes", "C:in_spikes"),
        Connection("C:out_spikes", "some:inputs"),
        Connection("some:output", "both:inputs"),
        Connection("B:out_spikes", "both:inputs"),
        Connection("both:output", "out:spikes"),
    ],
    inputs={"x": (2,)},
    outputs={"what is said": "out:signal", "A": "A:out_spikes"},
    dt=0.1,
    dtype="bfloat16",
)


@pytest.mark.parametrize("brain", [MANY, read_brain(AB_BRAIN)], ids=["many kinds", "ab_brain"])
def test_a_brain_that_was_written_reads_back_equal(brain):
    assert back_and_forth(brain) == brain


FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=1e-6, max_value=1e6)


@pytest.mark.compiles
@hypothesis.given(tau=FLOATS, resistance=FLOATS, dt=st.sampled_from([0.1, 1 / 3, 1.0]), units=st.integers(1, 9))
@hypothesis.settings(max_examples=30)
def test_every_number_reads_back_exactly(tau, resistance, dt, units):
    neuron = Neuron(units, soma=LeakySoma(potential_tau=tau, resistance=resistance))
    brain = Brain({"A": neuron}, [Connection("inputs:x", "A:in_spikes", None)], inputs={"x": (2,)}, dt=dt)
    assert back_and_forth(brain) == brain


def test_what_modules_share_is_a_template_and_units_stand_in_comments(tmp_path):
    write_brain(read_brain(AB_BRAIN), tmp_path / "model.toml")
    text = (tmp_path / "model.toml").read_text()
    assert text.count("potential_tau = 20.0  # ms") == 1, "four populations, one template"
    assert '[modules.A_in]\nuse = "neuron"\ncount = 64\ninhibitory_rate = 1.0\n' in text
    assert read_brain(tmp_path / "model.toml") == read_brain(AB_BRAIN)


def test_a_class_without_a_name_is_told_with_its_module():
    @dataclasses.dataclass(frozen=True)
    class Nameless(LinearSpiker):
        pass

    brain = Brain({"eye": Nameless()}, [Connection("inputs:x", "eye:signal")], inputs={"x": (1,)})
    with pytest.raises(BrainError, match="eye") as error:
        write_toml(brain, folder=Path())
    (problem,) = error.value.problems
    assert problem.what.endswith("Nameless has no name in files")
    assert problem.fix == "@register('nameless') above its class"


def test_modules_of_ones_own_are_written_with_the_file_to_import(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from outlay.brain.registry import register\n"
        "from outlay.brain.encoders import LinearSpiker\n\n"
        "@register('quick_spiker_of_writing')\n@dataclass(frozen=True)\nclass Quick(LinearSpiker):\n"
        "    tau: float = 1.0\n"
    )
    (tmp_path / "model.toml").write_text(
        'imports = ["mine.py"]\nconnections = ["inputs:x -> eye:signal"]\ninputs.x.shape = [2]\n'
        'modules.eye = {type = "quick_spiker_of_writing"}\n'
    )
    brain = read_brain(tmp_path / "model.toml", trust=True)
    write_brain(brain, tmp_path / "again.toml")
    assert 'imports = ["mine.py"]' in (tmp_path / "again.toml").read_text()
    assert read_brain(tmp_path / "again.toml", trust=True) == brain


def test_kernels_may_be_files_named_from_the_folder_of_the_brain(tmp_path):
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "kernel.npy", kernel)
    synapses = LinearSynapses(KernelFile(str(tmp_path / "kernel.npy")))
    brain = Brain({"A": Neuron(2, synapses=synapses)}, [Connection("inputs:x", "A:in_spikes")], inputs={"x": (3,)})
    write_brain(brain, tmp_path / "model.toml")
    assert 'kernel = {type = "npy", path = "kernel.npy"}' in (tmp_path / "model.toml").read_text()
    assert read_brain(tmp_path / "model.toml") == brain
    np.testing.assert_array_equal(brain.init(jax.random.key(0))["A"]["synapses"]["kernel"], kernel)
    np.save(tmp_path / "kernel.npy", kernel.T)
    with pytest.raises(BrainError, match=r"it has shape \(3, 2\), but the kernel is \(2, 3\)"):
        brain.init(jax.random.key(0))
    (tmp_path / "kernel.npy").unlink()
    with pytest.raises(BrainError, match=r"a file that numpy\.save has written"):
        brain.init(jax.random.key(0))


def test_every_class_with_a_name_is_in_the_library():
    """Files know only what is imported when they are read."""
    brain = Path(outlay.brain.__path__[0])
    named = {file for file in brain.rglob("*.py") if "\n@register(" in file.read_text()}
    assert named == {Path(file.__file__ or "") for file in library()}
