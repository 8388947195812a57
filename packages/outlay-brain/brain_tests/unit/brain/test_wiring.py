"""What a Brain refuses when it is made, and how it says so."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import LinearSpiker
from outlay.brain.initializers import SparseUniform, Uniform
from outlay.brain.module import BrainError, Module, Port
from outlay.brain.neuron import Neuron
from outlay.brain.reshape import Concat
from outlay.brain.somas.leaky import LeakySoma
from outlay.brain.synapses import LinearSynapses


@dataclass(frozen=True)
class Scale(Module):
    """Values of a fixed shape and unit, multiplied."""

    shape: tuple[int, ...] = (3,)
    unit: str = "mV"
    reads: tuple[int, ...] | None = None

    def inputs(self):
        return {"x": Port("values", self.reads, "mV")}

    def outputs(self, shapes):
        return {"y": Port("values", self.shape, self.unit)}

    def init(self, key, shapes, *, dt, dtype):
        return {}

    def step(self, state, inputs, *, dt):
        return state, {"y": jnp.zeros(self.shape) + inputs["x"].sum()}


def problems_of(*args, **settings) -> list[tuple[str, str, str, str]]:
    with pytest.raises(BrainError) as error:
        Brain(*args, **settings)
    return [(p.kind, p.where, p.what, p.fix) for p in error.value.problems]


EYE_INPUT = Connection("inputs:light", "eye:signal")


def test_what_several_sources_of_a_port_are_together_is_flat_and_in_the_order_of_the_connections():
    brain = Brain(
        {"a": Scale((2, 2)), "b": Scale((3,)), "both": Concat("values")},
        [
            Connection("inputs:x", "a:x"),
            Connection("inputs:x", "b:x"),
            Connection("b:y", "both:inputs"),
            Connection("a:y", "both:inputs"),
        ],
        inputs={"x": (1,)},
        outputs={"seen": "both:output"},
    )
    assert brain.wiring.input_shapes["both"] == {"inputs": (7,)}
    assert [str(source) for source in brain.wiring.reads["both"]["inputs"]] == ["b:y", "a:y"]
    assert brain.wiring.outputs == {"seen": ("both", "output")}


def test_modules_may_read_each_other_around_a_cycle_and_themselves():
    brain = Brain({"a": Scale()}, [Connection("a:y", "a:x"), Connection("inputs:x", "a:x")], inputs={"x": (1,)})
    assert brain.wiring.input_shapes["a"] == {"x": (4,)}


def test_shapes_are_found_through_modules_that_have_none_of_their_own():
    chain = {f"c{i}": Concat("values") for i in range(4)}
    links = [Connection(f"c{i}:output", f"c{i + 1}:inputs") for i in range(3)]
    brain = Brain(dict(reversed(chain.items())), [Connection("inputs:x", "c0:inputs"), *links], inputs={"x": (2, 3)})
    assert {name: ports["output"].shape for name, ports in brain.wiring.output_ports.items()} == dict.fromkeys(
        chain, (6,)
    )


@pytest.mark.compiles
def test_a_delay_is_read_that_many_steps_later():
    brain = Brain(
        {"a": Scale((1,)), "b": Scale((1,))},
        [Connection("inputs:x", "a:x"), Connection("a:y", "b:x", delay=1.5)],
        inputs={"x": (1,)},
        outputs={"seen": "b:y"},
        dt=0.5,
    )
    state, seen = brain.init(jax.random.key(0)), []
    for value in (7.0, 0, 0, 0, 0):
        state, outputs = brain.step(state, {"x": jnp.full(1, value)})
        seen.append(float(outputs["seen"][0]))
    assert seen == [0, 0, 0, 7.0, 0]


@pytest.mark.parametrize(("kind", "dtype"), [("spikes", jnp.int8), ("values", jnp.float16)])
def test_an_input_arrives_in_the_dtype_of_what_reads_it(kind, dtype):
    @dataclass(frozen=True)
    class Keeps(Concat):
        def init(self, key, shapes, **options):
            return {"seen": jnp.zeros(4, dtype)}

        def step(self, state, inputs, *, dt):
            return {"seen": inputs["inputs"]}, {"output": inputs["inputs"]}

    links = [Connection("inputs:x", "keeps:inputs")]
    brain = Brain({"keeps": Keeps(kind)}, links, inputs={"x": (4,)}, dtype="float16")
    state, _ = brain.step(brain.init(jax.random.key(0)), {"x": jnp.ones(4)})
    assert state["keeps"]["seen"].dtype == dtype


def test_every_offender_is_listed_at_once():
    problems = problems_of(
        {"eye": LinearSpiker(tau=-3.0), "out": ExponentialIntegrator(2), "a": Scale((3,)), "b": Scale(reads=(4,))},
        [
            Connection("inputs:lihgt", "eye:signal"),
            Connection("eye:spikes", "out:spikse"),
            Connection("eyes:spikes", "out:spikes"),
            Connection("a:y", "b:x"),
            Connection("a:w", "c:x"),
            Connection("a:y", "a:x", delay=0.3),
        ],
        inputs={"light": (3,)},
        outputs={"seen": "a:z"},
        dtype="float23",
    )
    assert problems == [
        ("setting", "dtype", "a Brain does not compute in 'float23'", "one of float32, float16, bfloat16"),
        ("setting", "eye", "tau is -3 ms", "a positive number, such as 100 ms"),
        ("connection", "inputs:lihgt -> eye:signal", "the Brain has no input 'lihgt'", "did you mean 'light'?"),
        ("connection", "eye:spikes -> out:spikse", "out reads no port 'spikse'", "did you mean 'spikes'?"),
        ("connection", "eyes:spikes -> out:spikes", "there is no module 'eyes'", "did you mean 'eye'?"),
        ("connection", "a:w -> c:x", "there is no module 'c'", "known: 'eye', 'out', 'a', 'b'"),
        (
            "connection",
            "a:y -> a:x",
            "its delay of 0.3 ms is 0.3 steps of dt = 1 ms",
            "a whole number of steps, at least 1, such as 1 ms (delay=1; in a file, after 1 ms)",
        ),
        ("connection", "a:w -> c:x", "a writes no port 'w'", "known: 'y'"),
        (
            "shape",
            "b:x",
            "it reads values (4,) in mV, and what arrives is (3,): a:y values (3,) in mV",
            "sources that make (4,)",
        ),
        ("output", "seen", "a:z: a writes no port 'z'", "known: 'y'"),
    ]


@pytest.mark.parametrize(
    ("connections", "where", "what", "fix"),
    [
        ([EYE_INPUT, EYE_INPUT], str(EYE_INPUT), "it is listed twice", "list it once"),
        ([Connection("light", "eye:signal")], "light -> eye:signal", "'light' names no port", "inputs:NAME"),
        ([EYE_INPUT, Connection("eye:spikes", "eye")], "eye:spikes -> eye", "'eye' names no port", "MODULE:PORT"),
        (
            [EYE_INPUT, Connection("eye:spikes", "ear:signal")],
            "eye:spikes -> ear:signal",
            "there is no module 'ear'",
            "known: 'eye'",
        ),
        (
            [Connection("inputs:light", "eye:signal", delay=2.0)],
            "inputs:light -> eye:signal",
            "it has a delay, and inputs are read in their own step",
            "leave the delay out",
        ),
        (
            [EYE_INPUT, Connection("eye:spikes", "eye:signal", delay=-1.0)],
            "eye:spikes -> eye:signal",
            "its delay is -1.0 ms",
            "a positive multiple of dt, such as 1 ms",
        ),
        (
            [EYE_INPUT, Connection("eye:spikes", "eye:signal", delay=2.5)],
            "eye:spikes -> eye:signal",
            "its delay of 2.5 ms is 2.5 steps of dt = 1 ms",
            "such as 2 ms",
        ),
    ],
)
def test_a_connection_that_cannot_be(connections, where, what, fix):
    problems = problems_of({"eye": LinearSpiker()}, connections, inputs={"light": (3,)})
    kind, at, reason, edit = problems[0]
    assert (kind, at, reason) == ("connection", where, what)
    assert fix in edit


def test_a_port_that_nothing_is_connected_to():
    assert problems_of({"eye": LinearSpiker()}, []) == [
        (
            "unconnected port",
            "eye:signal",
            "nothing is connected to it, and every input port of eye must be connected",
            'a connection from something that writes values to "eye:signal"',
        )
    ]


def test_a_port_of_another_kind_or_unit_names_both_ends():
    modules = {"eye": LinearSpiker(), "a": Scale(unit="pA"), "b": Scale()}
    links = [EYE_INPUT, Connection("eye:spikes", "a:x"), Connection("a:y", "b:x")]
    assert problems_of(modules, links, inputs={"light": (3,)}) == [
        (
            "connection",
            "eye:spikes -> a:x",
            "eye:spikes writes spikes (3,), and a:x reads values any shape in mV",
            "a source of values, or a module between them that makes values of spikes",
        ),
        ("connection", "a:y -> b:x", "a:y is in pA, and b:x in mV", "a port of the same unit"),
    ]


def test_an_origin_that_writes_no_such_port():
    modules = {"eye": LinearSpiker(), "out": ExponentialIntegrator(1)}
    links = [EYE_INPUT, Connection("eye:spike", "out:spikes")]
    assert problems_of(modules, links, inputs={"light": (3,)}) == [
        ("connection", "eye:spike -> out:spikes", "eye writes no port 'spike'", "did you mean 'spikes'?")
    ]


def test_a_cycle_in_which_nobody_says_a_shape_is_named_once_and_not_what_follows_from_it():
    modules = {"after": Concat("values"), "a": Concat("values"), "b": Concat("values")}
    links = [
        Connection("a:output", "b:inputs"),
        Connection("b:output", "a:inputs"),
        Connection("a:output", "after:inputs"),
    ]
    assert problems_of(modules, links) == [
        (
            "missing shape",
            "a:inputs",
            "its shape follows from itself, around a cycle in which no module has a shape of its own: a -> b -> a",
            "put a module with a shape of its own into the cycle, such as a neuron with its units",
        )
    ]
    modules["b"] = Concat("values", shape=(5, 1))
    assert Brain(modules, links).wiring.input_shapes["after"] == {"inputs": (5,)}


def test_what_a_module_refuses_of_what_arrives_is_told_with_its_name():
    links = [EYE_INPUT, Connection("eye:spikes", "out:spikes")]
    (problem,) = problems_of({"eye": LinearSpiker(), "out": ExponentialIntegrator(4)}, links, inputs={"light": (3,)})
    assert problem == (
        "shape",
        "out",
        "num_outputs is 4, of the 3 neurons that arrive, group 3 would have none",
        "a neuron for each group",
    )


@pytest.mark.parametrize("dt", [0.0, -1.0, float("nan"), "1 ms", None])
def test_a_time_of_a_step_that_is_none(dt):
    problems = problems_of({"eye": LinearSpiker()}, [EYE_INPUT], inputs={"light": (3,)}, dt=dt)
    assert problems == [("setting", "dt", f"the time of a step is {dt!r} ms", "a positive number, such as dt = 1.0")]


@pytest.mark.parametrize("name", ["cache", "inputs", "2nd", "A.ex", "A ex", "A:ex", ""])
def test_a_name_that_would_break_paths(name):
    problems = problems_of({name: LinearSpiker()}, [Connection("inputs:x", f"{name}:signal")], inputs={"x": (1,)})
    assert ("module name", repr(name)) in [problem[:2] for problem in problems]
    assert all("letters, digits and underscores" in fix for kind, _, _, fix in problems if kind == "module name")


@pytest.mark.parametrize("shape", [4, (0,), (2.0,), ("x",)])
def test_a_shape_that_no_input_can_have(shape):
    problems = problems_of({"eye": LinearSpiker()}, [EYE_INPUT], inputs={"light": shape})
    assert problems == [("input shape", "inputs:light", f"it is {shape!r}", "positive whole numbers, such as (4,)")]


def test_a_brain_of_nothing():
    with pytest.raises(BrainError, match="there is no module"):
        Brain({}, [])


def test_inputs_that_do_not_fit_are_all_named():
    brain = Brain(
        {"eye": LinearSpiker(), "ear": LinearSpiker()},
        [EYE_INPUT, Connection("inputs:sound", "ear:signal")],
        inputs={"light": (3,), "sound": [2]},
    )
    with pytest.raises(BrainError, match="3 problem") as error:
        brain.step(brain.init(jax.random.key(0)), {"light": jnp.zeros(4), "sund": jnp.zeros(2)})
    assert [(p.where, p.what, p.fix) for p in error.value.problems] == [
        ("sund", "the Brain has no input 'sund'", "did you mean 'sound'?"),
        ("light", "its shape is (3,), but the array has shape (4,)", "an array of shape (3,)"),
        ("sound", "nothing is given for it", "an array of shape (2,)"),
    ]


def test_an_error_of_a_module_of_ones_own_is_not_taken_for_a_missing_shape():
    @dataclass(frozen=True)
    class Wrong(Scale):
        def outputs(self, shapes):
            return {}["oops"]

    with pytest.raises(KeyError, match="oops"):
        Brain({"a": Wrong()}, [Connection("inputs:x", "a:x")], inputs={"x": (1,)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"synapses": LinearSynapses(SparseUniform(density=2.0))}, "synapses.kernel.density is 2\n    fix: a share"),
        ({"synapses": LinearSynapses(SparseUniform(density=-1.0))}, "synapses.kernel.density is -1"),
        ({"synapses": LinearSynapses(Uniform(scale=float("nan")))}, "synapses.kernel.scale is nan"),
        ({"synapses": LinearSynapses(Uniform(scale=float("inf")))}, "synapses.kernel.scale is inf"),
        ({"soma": LeakySoma(threshold=-70.0)}, "soma.threshold is -70 mV, below potential_reset, -50 mV"),
        ({"soma": LeakySoma(resistance=1e300)}, "soma.resistance is 1e+300"),
        ({"delays": N2NDelays(20.05)}, "delays.max_delay is 20.05 ms, 200.5 steps of dt = 0.1 ms"),
        ({"delays": N2NDelays(2.0, min_delay=0.25)}, "delays.min_delay is 0.25 ms, 2.5 steps of dt = 0.1 ms"),
        ({"units": 10**12}, "units is 1000000000000\n    fix: a whole number of neurons, at least 1 and below 2**31"),
    ],
)
def test_settings_that_no_network_can_have_are_told(settings, message):
    modules = {"eye": LinearSpiker(), "net": Neuron(**{"units": 4, **settings})}
    ends = [Connection("inputs:light", "eye:signal"), Connection("eye:spikes", "net:in_spikes")]
    with pytest.raises(BrainError) as error:
        Brain(modules, ends, inputs={"light": (3,)}, dt=0.1)
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_a_threshold_that_nothing_reaches_is_one():
    soma, delays = LeakySoma(threshold=float("inf")), N2NDelays(0.3, min_delay=0.1)
    assert Neuron(4, soma=soma, delays=delays).problems(dt=0.1) == []
