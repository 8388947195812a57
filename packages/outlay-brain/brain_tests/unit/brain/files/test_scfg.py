"""Spark's files: an older one, the newest (written by Spark 1.2.2), and broken ones."""

import copy
import dataclasses
import json
import lzma
import sys
from pathlib import Path

import pytest

import outlay
import outlay.brain.run
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import TopologicalLinearSpiker
from outlay.brain.files.convert import write_brain
from outlay.brain.files.read_brain import read_brain
from outlay.brain.files.scfg import plain
from outlay.brain.initializers import SparseUniform
from outlay.brain.learning_rules.hebbian import HebbianRule
from outlay.brain.learning_rules.quadruplet import ModulatedBoundedQuadrupletRule
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.somas.composed import ComposedLeakySoma
from outlay.brain.somas.leaky import AdaptiveLeakySoma, LeakySoma, RefractoryLeakySoma
from outlay.brain.synapses import TracedSynapses

DATA = Path(__file__).parents[3] / "data"
OLDER, NEWEST = DATA / "example_ab_model.scfg", DATA / "spark_1_2.scfg"
TUTORIAL, NEURON = DATA / "ab_brain_2026_04.scfg", DATA / "alif_mod_neuron.scfg"
AB_BRAIN = Path(outlay.brain.run.__path__[0]) / "ab_brain.toml"


@pytest.fixture
def older() -> dict:
    """The older file as Python's dictionaries."""
    return json.loads(OLDER.read_text())


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a Brain from what a .scfg holds, in a file called model.scfg."""

    def read_data(data: object, **options) -> Brain:
        (tmp_path / "model.scfg").write_text(json.dumps(data))
        return read_brain("model.scfg", **options)

    monkeypatch.chdir(tmp_path)
    return read_data


def problems_of(error: pytest.ExceptionInfo[BrainError]) -> list[tuple[str, str, str]]:
    return [(p.kind, p.where, p.what) for p in error.value.problems]


def test_the_tutorials_model_is_ours_but_for_its_resistance_and_dtype():
    other, own = read_brain(OLDER), read_brain(AB_BRAIN)
    assert other.dtype == "float16"
    assert (dict(other.inputs), dict(other.outputs)) == ({"drive": (4,)}, {"action": "integrator:signal"})
    assert {m.soma.resistance for m in other.modules.values() if isinstance(m, Neuron)} == {100.0}
    quieter = {
        name: dataclasses.replace(m, soma=dataclasses.replace(m.soma, resistance=0.8)) if isinstance(m, Neuron) else m
        for name, m in other.modules.items()
    }
    assert quieter == own.modules
    for name, by_port in own.wiring.reads.items():
        assert other.wiring.reads[name] == by_port, "in the same order"


def test_the_newest_files_are_xz_and_wire_their_neurons(tmp_path):
    brain = read_brain(NEWEST, inputs={"drive": (4,)})
    # Spark 1.2 has no tau before the resistance, and a delay of d steps where ours of d is d - 1 after it is read.
    soma = ComposedLeakySoma(resistance=0.1 / 20, cooldown=3.0, threshold_delta=100.0)
    synapses = TracedSynapses(SparseUniform(1.0, 0.2), tau=5.0)
    rule = HebbianRule(eta=0.01)
    assert brain == Brain(
        {
            "spiker": TopologicalLinearSpiker(tau=30.0, mins=-1.0, maxs=1.0, resolution=16),
            "A": Neuron(12, soma=soma, synapses=synapses, delays=N2NDelays(9.0, min_delay=2.0), learning_rule=rule),
            "out": ExponentialIntegrator(2, tau=20.0),
        },
        [
            Connection("inputs:drive", "spiker:signal"),
            Connection("spiker:spikes", "A:in_spikes"),
            Connection("A:out_spikes", "A:in_spikes"),
            Connection("A:out_spikes", "out:spikes"),
        ],
        inputs={"drive": (4,)},
        outputs={"action": "out:signal"},
        dtype="float16",
    )


def test_what_only_older_files_need_is_imported_for_older_files_alone(monkeypatch):
    module = "outlay.brain.files.scfg.older"
    monkeypatch.delitem(sys.modules, module, raising=False)
    read_brain(NEWEST, inputs={"drive": (4,)})
    assert module not in sys.modules
    read_brain(OLDER)
    assert module in sys.modules


def test_the_file_of_the_tutorial_of_2026_is_read_and_written_as_toml(tmp_path):
    with pytest.raises(BrainError, match="--shape signal=4") as error:
        read_brain(TUTORIAL)
    assert [p.kind for p in error.value.problems] == ["missing shape"], "what a rule reads is one number"
    brain = read_brain(TUTORIAL, inputs={"signal": (4,)})
    neurons = brain.modules["A_excitatory"]
    assert isinstance(neurons, Neuron)
    assert neurons.delays == N2NDelays(4.0), "as Spark 1.0.0 takes them"
    assert neurons.synapses.kernel == SparseUniform(6.0, 0.15, min_value=0.0, max_value=10.0)
    rule = neurons.learning_rule
    assert isinstance(rule, ModulatedBoundedQuadrupletRule)
    assert rule.max_clip == (50.0, 50.0, 100.0, 100.0)
    write_brain(brain, tmp_path / "tutorial.toml")
    assert read_brain(tmp_path / "tutorial.toml") == brain


def test_a_neurons_file_is_no_brain_but_a_neuron_of_as_many_as_one_says():
    with pytest.raises(BrainError, match=r"a neuron, not a Brain\n.*outlay.brain.read_neuron\(.*units=12\)"):
        read_brain(NEURON)
    with pytest.raises(BrainError, match="does not say how many neurons"):
        outlay.brain.read_neuron(NEURON)
    with pytest.raises(BrainError, match="if it is a Brain"):
        outlay.brain.read_neuron(NEWEST, units=3)
    with pytest.raises(BrainError, match="of Spark"):
        outlay.brain.read_neuron(AB_BRAIN)
    neuron = outlay.brain.read_neuron(NEURON, units=10)
    assert (neuron.units, neuron.inhibitory_rate) == (10, 0.2)
    assert neuron.delays == N2NDelays(8.0)
    assert isinstance(neuron.learning_rule, ModulatedBoundedQuadrupletRule)


def test_delays_and_somas_are_those_of_the_version_that_wrote_the_file(read):
    def neuron(data) -> Neuron:
        module = read(data, inputs={"drive": (4,)}).modules["A"]
        assert isinstance(module, Neuron)
        return module

    older = newest()
    soma = components(older)[2]["__data__"]["config"]["__cfg__"]
    for setting in ("clamp_duration", "adaptation_delta", "adaptation_tau", "adaptation_subthreshold"):
        del soma[setting]
    assert neuron(older).delays == N2NDelays(8.0), "Spark 1.1.0 has this soma without these settings"
    assert neuron(older).soma == AdaptiveLeakySoma(resistance=0.1 / 20, cooldown=3.0, threshold_delta=100.0)
    leaky = copy.deepcopy(older)
    components(leaky)[2]["__data__"]["module_cls"]["__module_type__"] = "leaky_soma"
    for setting in ("cooldown", "threshold_delta", "threshold_tau"):
        del components(leaky)[2]["__data__"]["config"]["__cfg__"][setting]
    assert neuron(leaky).delays == N2NDelays(9.0, min_delay=2.0), "nothing older is in it"
    mask = {"origin": "__self__", "port": "inhibition_mask", "is_property": True}
    components(leaky)[2]["__data__"]["inputs"]["inhibition_mask"] = [{"__type__": "port_map", "__data__": mask}]
    assert neuron(leaky).delays == N2NDelays(8.0), "only until 1.1.0 a neuron tells its soma who is inhibitory"
    components(leaky)[0]["__data__"]["config"]["__cfg__"]["seed"] = None
    assert neuron(leaky).delays == N2NDelays(9.0, min_delay=2.0), "only since 1.2.1 a seed may be missing"


def test_a_soma_without_mechanisms_is_a_plain_one_and_ports_of_neurons_may_have_other_names(read):
    data = newest()
    soma = components(data)[2]["__data__"]
    soma["config"]["__cfg__"] |= {"cooldown": None, "threshold_delta": None}
    soma["outputs"] = {"fired": "spikes"}
    components(data)[0]["__data__"]["inputs"]["in_spikes"][0]["__data__"]["port"] = "seen"
    modules = data["__data__"]["__cfg__"]["modules_specs"]
    modules[1]["__data__"]["inputs"]["seen"] = modules[1]["__data__"]["inputs"].pop("in_spikes")
    for module in modules:
        for origins in module["__data__"]["inputs"].values():
            for origin in origins:
                if origin["__data__"]["port"] == "out_spikes":
                    origin["__data__"]["port"] = "fired"
    brain = read(data, inputs={"drive": (4,)})
    assert brain.modules["A"].soma == LeakySoma(resistance=0.1 / 20)
    assert brain.connections == read_brain(NEWEST, inputs={"drive": (4,)}).connections


def test_shapes_of_inputs_that_the_file_does_not_say_are_asked_for():
    with pytest.raises(BrainError, match="--shape drive=4") as error:
        read_brain(NEWEST)
    assert [p.where for p in error.value.problems] == [f"{NEWEST} inputs.drive"]
    with pytest.raises(BrainError, match="the file has no input 'drvie'"):
        read_brain(NEWEST, inputs={"drive": (4,), "drvie": (4,)})


def test_modules_may_be_a_list_and_named_by_their_first_settings(read, older):
    listed, config = copy.deepcopy(older), older["__cfg__"]
    listed["__cfg__"]["modules_specs"] = list(listed["__cfg__"].pop("modules_map").values())
    assert read(listed) == read(older)
    for spec in config["modules_map"].values():
        settings = spec["__data__"]["config"]
        for kind in ("soma", "synapses", "delays", "learning_rule"):
            if kind in settings:
                settings[f"{kind}_config"] = settings.pop(kind)
    assert read(older) == read(listed), "still older files say soma_config"
    assert read(json.dumps(listed)) == read(listed), "some files are JSON in a JSON text"
    assert read({"__version__": "1.0", "__data__": listed}) == read(listed)


def test_the_rate_of_a_rule_may_be_called_gamma_or_eta(read, older):
    for number, spec in enumerate(older["__cfg__"]["modules_map"].values()):
        rule = spec["__data__"]["config"].get("learning_rule")
        if rule:
            del rule["gamma"]
            rule["gamma" if number % 2 else "eta"] = 0.3
    rules = [m.learning_rule for m in read(older).modules.values() if isinstance(m, Neuron)]
    assert [getattr(rule, "eta", None) for rule in rules] == [0.3] * 4


def test_the_soma_of_an_older_neuron_is_known_by_its_settings(read, older):
    spec = older["__cfg__"]["modules_map"]["A_in"]["__data__"]
    spec["module_cls"]["__module_type__"] = "lif_neuron"
    for setting in ("threshold_tau", "threshold_delta"):
        del spec["config"]["soma"][setting]
    neuron = read(older).modules["A_in"]
    assert isinstance(neuron, Neuron)
    assert neuron.soma == RefractoryLeakySoma(resistance=100.0)


def test_everything_that_is_not_understood_is_named_at_once(read, older):
    modules = older["__cfg__"]["modules_map"]
    modules["spiker"]["__data__"]["module_cls"]["__module_type__"] = "tanh_spiker"
    modules["A_ex"]["__data__"]["config"]["soma"]["potential_ta"] = 3.0
    modules["A_in"]["__data__"]["config"]["synapses"]["kernel"]["max_valu"] = 2.0
    modules["B_ex"]["__data__"]["config"]["delays"]["delay_initializer"]["scale"] = 0.5
    modules["B_in"]["__data__"]["config"]["learning_rule"]["__type__"] = "modulated_btsp_rule_config"
    modules["B_in"]["__data__"]["inputs"]["in_spikes"][0]["__data__"]["origin"] = "C_ex"
    modules["integrator"]["__data__"]["config"]["dt"] = 2.0
    with pytest.raises(BrainError) as error:
        read(older)
    assert problems_of(error) == [
        ("unknown module", "model.scfg modules.spiker", "Outlay has no module 'tanh_spiker'"),
        (
            "unknown setting",
            "model.scfg modules.A_ex.config.soma.potential_ta",
            "adaptive_leaky has no setting 'potential_ta'",
        ),
        (
            "unknown setting",
            "model.scfg modules.A_in.config.synapses.kernel.max_valu",
            "normalized_sparse_uniform has no setting 'max_valu'",
        ),
        (
            "not understood",
            "model.scfg modules.B_ex.config.delays.delay_initializer",
            "delays are drawn by uniform with scale = 0.5, and here uniformly up to max_delay",
        ),
        (
            "unknown component",
            "model.scfg modules.B_in.config.learning_rule",
            "Outlay has no learning rule 'modulated_btsp_rule': it has no modulated behavioural time scale plasticity",
        ),
        ("not understood", "model.scfg dt", "modules differ in dt: 1.0, 2.0"),
        ("connection", "C_ex:out_spikes -> B_in:in_spikes", "there is no module 'C_ex'"),
    ]


def newest() -> dict:
    return json.loads(lzma.decompress(NEWEST.read_bytes()))


def components(data: dict) -> list[dict]:
    return data["__data__"]["__cfg__"]["modules_specs"][1]["__data__"]["config"]["__cfg__"]["modules_specs"]


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        (
            lambda parts: parts[3]["__data__"]["module_cls"].update(__module_type__="modulated_btsp_rule"),
            "unknown component",
            "Outlay has no component 'modulated_btsp_rule': it has no modulated behavioural time scale plasticity",
        ),
        (
            lambda parts: parts[3]["__data__"]["inputs"]["pre_spikes"][0]["__data__"].update(origin="__call__"),
            "not understood",
            "its pre_spikes are not the spikes that synapses reads",
        ),
        (
            lambda parts: parts[1]["__data__"]["effects"].clear(),
            "not understood",
            "the kernel of synapses is not what it writes",
        ),
        (
            lambda parts: parts.append(copy.deepcopy(parts[1])) or parts[-1]["__data__"].update(name="more"),
            "not understood",
            "synapses and more are both synapses",
        ),
        (
            lambda parts: parts[2]["__data__"]["inputs"]["current"][0]["__data__"].update(origin="delays"),
            "not understood",
            "soma reads current of delays",
        ),
        (
            lambda parts: parts[1]["__data__"]["config"]["__cfg__"].update(
                kernel={"__type__": "array", "dtype": "float16", "shape": [1, 2], "data": [[1.0, 2.0]]}
            ),
            "array",
            "the file holds its values one by one, which no setting takes",
        ),
    ],
)
def test_what_is_not_understood_in_the_newest_files_is_named(read, change, kind, what):
    data = newest()
    change(components(data))
    with pytest.raises(BrainError) as error:
        read(data, inputs={"drive": (4,)})
    assert (kind, what) in [(kind, what) for kind, _, what in problems_of(error)]


@pytest.mark.compiles
def test_what_unpacks_to_too_much_is_refused_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(plain, "LARGEST", 2**20)
    (tmp_path / "bomb.scfg").write_bytes(lzma.compress(b"[" + b" " * 2**24))
    with pytest.raises(BrainError, match=r"its 2,\d\d\d bytes unpack to more than 1,048,576"):
        read_brain(tmp_path / "bomb.scfg")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"a": ' * 100_000, "nested too deeply"),
        (NEWEST.read_bytes()[:500], "its xz data ends early or is damaged"),
        (NEWEST.read_bytes()[:300] + b"\0" * 200 + NEWEST.read_bytes()[500:], "its xz data ends early or is damaged"),
        (OLDER.read_bytes()[:5000], "its JSON breaks off or is wrong"),
        (b'{"__type__": "neuron_config", "__cfg__": {"units": [3]}}', "it holds 'neuron_config'"),
        (b"{}", "it holds neither modules_map nor modules_specs"),
        (b'{"modules_specs": [{"name": "A", "config": {}}]}', "A has no module_cls"),
        (b'{"modules_specs": [3]}', "'3' is not a table"),
        (b'{"modules_specs": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"dt": ' + b"1" * 5000 + b"}", "its JSON breaks off or is wrong"),
    ],
)
def test_a_damaged_file_is_told_in_words(tmp_path, content, what):
    (tmp_path / "model.scfg").write_bytes(content)
    with pytest.raises(BrainError, match=what):
        read_brain(tmp_path / "model.scfg")


def test_the_files_of_the_branch_of_may_2026_are_read(tmp_path):
    """As those of April, but for the name of the rule and text that is not packed."""
    for file, there in ((NEURON, "neuron.scfg"), (TUTORIAL, "brain.scfg")):
        text = lzma.decompress(file.read_bytes()).decode()
        (tmp_path / there).write_text(text.replace("quadruplet_rule_tensor", "quadruplet_rule"))
    read, expected = (outlay.brain.read_neuron(file, units=3) for file in (tmp_path / "neuron.scfg", NEURON))
    assert read == expected
    shapes = {"signal": (4,)}
    assert read_brain(tmp_path / "brain.scfg", inputs=shapes) == read_brain(TUTORIAL, inputs=shapes)


def test_a_cooldown_between_two_steps_is_that_of_spark(read):
    data = newest()
    components(data)[2]["__data__"]["config"]["__cfg__"]["cooldown"] = 2.6
    neurons = read(data, inputs={"drive": (4,)}).modules["A"]
    assert isinstance(neurons, Neuron)
    assert neurons.soma.cooldown == 3.0, "Spark rounds it to steps of 1 ms"
