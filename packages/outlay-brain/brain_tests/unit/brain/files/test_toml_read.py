"""Brains as people write them, and what they are told when they slip."""

import textwrap

import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import TopologicalLinearSpiker
from outlay.brain.files.read_brain import read_brain
from outlay.brain.initializers import Constant
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.registry import registered_names
from outlay.brain.somas.leaky import AdaptiveLeakySoma, LeakySoma
from outlay.brain.synapses import LinearSynapses

SMALL = """\
    dt = "0.5 ms"
    connections = [
      "inputs:light -> eye:signal",  # what is seen
      "eye:spikes   -> A:in_spikes",
      "A:out_spikes -> A:in_spikes after 2 ms",
    ]
    [inputs.light]
    shape = [3]
    [outputs]
    spikes = "A:out_spikes"
    [modules.eye]
    type = "topological_linear_spiker"
    mins = -1
    maxs = [1, 2.0, 3]
    resolution = 8
    tau = "0.03 s"
    [modules.A]
    type = "neuron"
    count = 5
    soma = {type = "leaky", potential_tau = "10 ms", resistance = "0.8 GOhm/ms"}
    synapses = {type = "linear", kernel = {type = "constant", value = 30}}
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a Brain from text, in a file called model.toml."""

    def read_text(text: str, *, trust: bool = True) -> Brain:
        (tmp_path / "model.toml").write_text(textwrap.dedent(text))
        return read_brain("model.toml", trust=trust)

    monkeypatch.chdir(tmp_path)
    return read_text


@pytest.fixture
def problems(read):
    """What is wrong with a text: kind, where, what, fix."""

    def read_problems(text: str) -> list[tuple[str, str, str, str]]:
        with pytest.raises(BrainError) as error:
            read(text)
        return [(p.kind, p.where, p.what, p.fix) for p in error.value.problems]

    return read_problems


def test_a_file_reads_as_the_brain_in_python(read):
    eye = TopologicalLinearSpiker(tau=30.0, mins=-1.0, maxs=(1.0, 2.0, 3.0), resolution=8)
    soma = LeakySoma(potential_tau=10.0, resistance=0.8)
    assert read(SMALL) == Brain(
        {"eye": eye, "A": Neuron(5, soma=soma, synapses=LinearSynapses(Constant(30.0)))},
        [
            Connection("inputs:light", "eye:signal"),
            Connection("eye:spikes", "A:in_spikes"),
            Connection("A:out_spikes", "A:in_spikes", 2.0),
        ],
        inputs={"light": (3,)},
        outputs={"spikes": "A:out_spikes"},
        dt=0.5,
    )


TEMPLATES = """\
    connections = ["inputs:x -> A:in_spikes", "A:out_spikes -> B:in_spikes", "B:out_spikes -> C:in_spikes"]
    inputs.x.shape = [3]
    [templates.excitatory]
    type = "neuron"
    count = 8
    soma = {type = "adaptive_leaky", cooldown = 3, potential_tau = 10}
    delays = {type = "n2n", max_delay = 4}
    [templates.inhibitory]
    use = "excitatory"
    inhibitory_rate = 1
    [modules.A]
    use = "excitatory"
    [modules.B]
    use = "inhibitory"
    count = 2
    soma.potential_tau = "7 ms"
    [modules.C]
    use = "excitatory"
    soma = {type = "leaky"}
"""


def test_a_module_says_only_what_differs_from_its_template(read):
    delays, soma = N2NDelays(4.0), AdaptiveLeakySoma(cooldown=3.0, potential_tau=10.0)
    assert dict(read(TEMPLATES).modules) == {
        "A": Neuron(8, soma=soma, delays=delays),
        "B": Neuron(2, 1.0, soma=AdaptiveLeakySoma(cooldown=3.0, potential_tau=7.0), delays=delays),
        "C": Neuron(8, soma=LeakySoma(), delays=delays),  # another type takes nothing over from the template's
    }


def test_everything_wrong_is_told_at_once_with_its_line(problems):
    text = """\
        dt = "1 mV"
        dtypes = "float16"
        connections = [
          "inputs:ligth -> eye:signal",
          "eye:spikes -> A:in_spikse",
          "eye:spikes to A:in_spikes",
          "A:out_spikes -> B:in_spikes",
        ]
        [inputs.light]
        shape = [3]
        [outputs]
        seen = "A:out_spike"
        [modules.eye]
        type = "topological_linear_spiker"
        tau = "20 mV"
        resolutoin = 8
        [modules.A]
        type = "neuron"
        count = 5.5
        soma = {type = "leeky"}
        [modules.B]
        type = "neuron"
        count = 4
        [modules.B.soma]
        type = "leaky"
        potential_tau = "-20 ms"
    """
    assert problems(text) == [
        ("unknown key", "model.toml:2 dtypes", "'dtypes' is not part of a Brain", "did you mean 'dtype'?"),
        (
            "connection",
            "model.toml:6",
            "'eye:spikes to A:in_spikes' is not a connection",
            '"MODULE:PORT -> MODULE:PORT", or with a delay "MODULE:PORT -> MODULE:PORT after 2 ms"',
        ),
        (
            "wrong unit",
            "model.toml:15 modules.eye.tau",
            "tau: '20 mV' is a voltage in mV, and this is a time in ms",
            'a number in ms, such as 20.0 or "20 ms"',
        ),
        (
            "unknown setting",
            "model.toml:16 modules.eye.resolutoin",
            "topological_linear_spiker has no setting 'resolutoin'",
            "did you mean 'resolution'?",
        ),
        ("wrong type", "model.toml:19 modules.A.count", "count: 5.5 is not allowed", "a whole number"),
        ("unknown type", "model.toml:20 modules.A.soma.type", "there is no soma 'leeky'", "did you mean 'leaky'?"),
        (
            "wrong unit",
            "model.toml:1 dt",
            "'1 mV' is a voltage in mV, and this is a time in ms",
            'a number in ms, such as 20.0 or "20 ms"',
        ),
        (
            "setting",
            "model.toml:26 B",
            "soma.potential_tau is -20 ms",
            "a positive number, such as 20 ms",
        ),
        (
            "connection",
            "model.toml:4 inputs:ligth -> eye:signal",
            "the Brain has no input 'ligth'",
            "did you mean 'light'?",
        ),
    ]


def test_what_does_not_fit_between_modules_has_the_line_of_its_connection(problems):
    text = SMALL.replace("eye:spikes   -> A:in_spikes", "eye:spikes -> A:spikes").replace("2 ms", "0.7 ms")
    assert problems(text.replace('spikes = "A:out_spikes"', 'spikes = "B:out_spikes"')) == [
        ("connection", "model.toml:4 eye:spikes -> A:spikes", "A reads no port 'spikes'", "did you mean 'in_spikes'?"),
        (
            "connection",
            "model.toml:5 A:out_spikes -> A:in_spikes",
            "its delay of 0.7 ms is 1.4 steps of dt = 0.5 ms",
            "a whole number of steps, at least 1, such as 0.5 ms (delay=0.5; in a file, after 0.5 ms)",
        ),
        ("output", "model.toml:10 spikes", "B:out_spikes: there is no module 'B'", "known: 'eye', 'A'"),
    ]


def test_a_mistake_in_a_template_is_told_once_where_it_stands(problems):
    text = TEMPLATES.replace("cooldown = 3", "cooldwon = 3").replace('use = "inhibitory"', 'use = "inhibitry"')
    assert problems(text) == [
        (
            "unknown setting",
            "model.toml:6 templates.excitatory.soma.cooldwon",
            "adaptive_leaky has no setting 'cooldwon'",
            "did you mean 'cooldown'?",
        ),
        ("template", "model.toml:14 modules.B.use", "there is no template 'inhibitry'", "did you mean 'inhibitory'?"),
        ("no type", "model.toml:13 modules.B", "it does not say which module it is", problems_types()),
        (
            "unused template",
            "model.toml:8 templates.inhibitory",
            "no module uses the template 'inhibitory'",
            'use = "inhibitory" in a module, or remove it',
        ),
    ]


def problems_types() -> str:
    return f"type = one of {', '.join(registered_names())}"


def test_a_mistake_that_two_modules_share_is_told_once(problems):
    (problem,) = problems(TEMPLATES.replace("max_delay = 4", "max_delya = 4"))
    assert problem[1:3] == ("model.toml:7 templates.excitatory.delays.max_delya", "n2n has no setting 'max_delya'")


def test_a_table_is_where_its_first_part_is_spoken_of(problems):
    faults = problems('inputs.x.shape = [1]\n[modules.A.soma]\ntype = "leaky"\n')
    assert faults[0][:3] == ("no type", "model.toml:2 modules.A", "it does not say which module it is")


def test_templates_that_use_each_other_are_named(problems):
    text = TEMPLATES.replace("count = 8", 'use = "inhibitory"')
    (kind, where, what, _), *_ = problems(text)
    assert (kind, where) == ("template", "model.toml:9 templates.inhibitory.use")
    assert what == "templates that use each other: excitatory -> inhibitory -> excitatory"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("[inputs.light]\n    shape = [3]", "[inputs.light]"),
            ("missing shape", "model.toml:7 inputs.light", "the input 'light' has no shape", "shape = [4]"),
        ),
        (
            ("shape = [3]", "shape = [3]\n    size = 3"),
            ("unknown key", "model.toml:9 inputs.light.size", "an input has no 'size'", "shape, and nothing else"),
        ),
        (
            ("shape = [3]", "shape = 3"),
            (
                "input shape",
                "model.toml:8 inputs:light",
                "it is 3",
                "positive whole numbers, such as (4,)",
            ),
        ),
        (
            ("count = 5\n", ""),
            ("missing setting", "model.toml:17 modules.A.count", "neuron needs count", "count = ..."),
        ),
        (
            ("resolution = 8", "glue = 1"),
            (
                "wrong type",
                "model.toml:15 modules.eye.glue",
                "glue: 1 is not allowed",
                "true or false or a list of true or falses",
            ),
        ),
        (
            ('soma = {type = "leaky", potential_tau = "10 ms", resistance = "0.8 GOhm/ms"}', 'soma = "leaky"'),
            (
                "wrong type",
                "model.toml:20 modules.A.soma",
                "soma = 'leaky' is not a soma",
                'soma = {type = "adaptive_exponential"}',
            ),
        ),
        (
            ("connections = [", "connections = [\n  3,"),
            (
                "wrong type",
                "model.toml:2 connections",
                "connections is not a list of texts",
                'connections = ["MODULE:PORT -> MODULE:PORT", or with a delay "MODULE:PORT -> MODULE:PORT after 2 ms"]',
            ),
        ),
        (
            ('[modules.eye]\n    type = "topological_linear_spiker"', '[modules.eye]\n    type = "topolgical_spiker"'),
            (
                "unknown type",
                "model.toml:12 modules.eye.type",
                "there is no module 'topolgical_spiker'",
                "did you mean 'topological_linear_spiker' or 'topological_poisson_spiker'?",
            ),
        ),
    ],
)
def test_a_slip(problems, change, problem):
    assert change[0] in SMALL
    assert problem in problems(SMALL.replace(*change))


def test_connections_that_slipped_into_a_table_are_found(problems):
    text = """\
        [inputs.x]
        shape = [1]
        [outputs]
        connections = ["inputs:x -> eye:signal"]
        [modules.eye]
        type = "linear_spiker"
    """
    assert problems(text)[0] == (
        "misplaced",
        "model.toml:4 outputs.connections",
        "connections belongs to [outputs] here",
        "move it above the first [table]: a key belongs to the table above it",
    )


def test_what_is_no_toml_is_told_with_line_and_column(problems):
    ((kind, where, what, fix),) = problems("dt = 1\n[modules.A]\ntau = 20 ms\n")
    assert (kind, where) == ("not TOML", "model.toml:3:10")
    assert "text such as 20 ms stands in quotes" in fix
    assert what


def test_a_file_that_is_not_there_or_no_brain(tmp_path):
    with pytest.raises(BrainError, match=r"no file: .*missing\.toml\n    No such file or directory"):
        read_brain(tmp_path / "missing.toml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(BrainError, match=r"it is neither text nor a \.scfg file"):
        read_brain(tmp_path / "picture.png")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(BrainError, match="there is no module"):
        read_brain(tmp_path / "empty.toml")


OWN = """\
from dataclasses import dataclass
from outlay.brain.registry import register
from outlay.brain.encoders import LinearSpiker

@register("quick_spiker_of_{name}")
@dataclass(frozen=True)
class QuickSpiker(LinearSpiker):
    tau: float = 1.0
"""


def test_modules_of_ones_own_are_imported_by_the_file(read, tmp_path):
    (tmp_path / "mine.py").write_text(OWN.format(name="reading"))
    brain = read("""\
        imports = ["mine.py"]
        connections = ["inputs:x -> eye:signal"]
        inputs.x.shape = [2]
        modules.eye = {type = "quick_spiker_of_reading"}
    """)
    assert type(brain.modules["eye"]).__name__ == "QuickSpiker"
    assert read((tmp_path / "model.toml").read_text()) == brain, "a second time it is not run again"


def test_a_file_of_a_stranger_runs_nothing(read, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(BrainError, match=r"mine.py is Python, .*\n.*--trust, or outlay.*, trust=True\)"):
        read('imports = ["mine.py"]\nmodules.a.type = "linear_spiker"\n', trust=False)
    (tmp_path / "circle.py").symlink_to("circle.py")
    for name in (str(tmp_path.parent / "other.py"), "../other.py", "circle.py"):
        (tmp_path.parent / "other.py").write_text("raise SystemExit('it ran')")
        with pytest.raises(BrainError, match=r"lies outside the folder of this|leads to no file: .*Too many levels"):
            read(f'imports = ["{name}"]\nmodules.a.type = "linear_spiker"\n')


def test_a_file_nested_without_end_is_refused(read):
    with pytest.raises(BrainError, match="nested too deeply"):
        read("dt = " + "[" * 100_000)


def test_imports_that_fail_are_told(problems, tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    assert problems('imports = ["broken.py", "missing.py"]\nmodules.a.type = "linear_spiker"\n')[:2] == [
        (
            "import",
            "model.toml:1",
            "broken.py fails: ModuleNotFoundError: No module named 'nothing_of_this_name'",
            "correct it; it runs as it is",
        ),
        (
            "import",
            "model.toml:1",
            "there is no file missing.py",
            "a path from the folder of this file to a Python file",
        ),
    ]
