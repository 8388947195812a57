"""What a user may give `run_brain`: a mesh of their own that is set, layouts, states of other layouts, files of NIR."""

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest
from brain_tests.unit.brain.run.tiny import tiny
from jax.sharding import AxisType

import outlay
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import LinearSpiker
from outlay.brain.files.convert import write_brain
from outlay.brain.files.nir_read import read_nir
from outlay.brain.module import BrainError
from outlay.brain.neuron import Neuron
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.run_brain import run_brain
from outlay.brain.run.simulate import BrainStopped
from outlay.recipes.prepare import prepare

LIGHT = np.random.default_rng(0).random((40, 2)).astype(np.float32)
BY_MODULE = outlay.by_module({"eye": [0, 1], "count": 2})
ARGS = {"record": "*:out_spikes", "chunk": 20}


def run(steps=20, start=0, **options):
    return run_brain(tiny(), steps=steps, inputs={"light": LIGHT[start:]}, **ARGS, **options)


@pytest.fixture(scope="module")
def plain():
    return run(40)["eye:out_spikes"]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("kind", "num"), [(AxisType.Auto, 1), (AxisType.Explicit, 8)])
def test_everything_runs_after_a_user_has_set_a_mesh(plain, kind, num):
    mesh = jax.make_mesh((num,), ("x",), devices=jax.devices()[:num], axis_types=(kind,))
    with jax.set_mesh(mesh):
        for layout in (None, "copies", "by-neuron", BY_MODULE):
            again = run_brain(tiny(), steps=20, inputs={"light": jnp.asarray(LIGHT)}, layout=layout, **ARGS)
            assert np.array_equal(again["eye:out_spikes"], plain[:20])
        recipe = BrainRecipe.of(tiny(), inputs={"light": LIGHT}, steps=4).with_layout(BY_MODULE)
        program = prepare(recipe).program
        outlay.verify(program).raise_if_different()
        assert outlay.explain(program)
        tree = {"w": jnp.ones((8, 4))}
        eight = outlay.mesh(data=8)
        plan = outlay.fsdp(min_size=1).plan(tree, eight)
        assert outlay.arrays.reshard(outlay.arrays.put(tree, plan, eight), plan, eight)["w"].sharding.mesh == eight
        step = outlay.program(
            lambda state, batch: (state, {"sum": (batch @ state["w"]).sum()}),
            lambda key: {"w": jax.random.normal(key, (8, 4))},
            jnp.ones((8, 8)),
            layout=outlay.fsdp(min_size=1) + outlay.data_parallel(),
            mesh=eight,
        )
        assert step(step.init(jax.random.key(0)), np.ones((8, 8), np.float32))
        assert jax.sharding.get_abstract_mesh().axis_names == ("x",), "the user's mesh is set as before"


def test_a_layout_brings_its_mode_and_its_mesh(plain):
    for layout in (BY_MODULE, outlay.layout.by_rows("rows"), outlay.by_module({"eye": 3, "count": 0})):
        assert np.array_equal(run(layout=layout)["eye:out_spikes"], plain[:20])


@pytest.mark.thorough  # test_saves.py
def test_a_state_goes_on_under_any_other_layout(plain):
    state, devices = None, jax.devices()
    layouts = [None, outlay.layout.by_rows("rows"), BY_MODULE, "copies", "by-neuron", None, None]
    for number, layout in enumerate(layouts):
        start = 5 * number
        mesh = outlay.mesh(neurons=2, devices=devices[:2]) if layout == "by-neuron" else None
        after = run(5, start, layout=layout, mesh=mesh, state=state)
        assert np.array_equal(after["eye:out_spikes"], plain[start : start + 5])
        state = outlay.arrays.gather(after.state) if number == len(layouts) - 2 else after.state
    assert plain[:start].any()


def test_a_state_that_is_used_up_or_of_another_brain_is_told():
    state = run().state
    run(state=state)
    with pytest.raises(BrainError, match=r"used up by the run that began with it: .*\n  fix: the state of that run"):
        run(state=state)
    others = [tiny(units=5).init(jax.random.key(0)), {}, {"a": 1}]
    for other in others:
        with pytest.raises(BrainError, match=r"the state does not fit this Brain: [0-9]+ problem"):
            run(state=other, layout="by-neuron")


def test_a_file_of_nir_runs_with_its_own_kernels(tmp_path):
    weight = np.array([[30.0, -20.0, 5.0], [0.0, 40.0, 2.0]])
    lif = nir.LIF(tau=np.full(2, 0.02), r=np.ones(2), v_leak=np.zeros(2), v_threshold=np.ones(2), v_reset=np.zeros(2))
    nodes = {
        "input": nir.Input(np.array([3])),
        "w": nir.Linear(weight),
        "lif": lif,
        "output": nir.Output(np.array([2])),
    }
    nir.write(tmp_path / "x.nir", nir.NIRGraph(nodes, [("input", "w"), ("w", "lif"), ("lif", "output")]))
    read, drive = read_nir(tmp_path / "x.nir"), (LIGHT[:, :1] * np.ones(3) < 0.5).astype(np.float32)
    runs = [
        run_brain(what, steps=40, inputs={"input": drive}, record=["lif:out_spikes", "lif.synapses.kernel"])
        for what in (read, tmp_path / "x.nir", str(tmp_path / "x.nir"), read.brain)
    ]
    for again in runs:
        assert np.array_equal(again["lif.synapses.kernel"][-1], weight.astype(np.float32))
        assert np.array_equal(again["lif:out_spikes"], runs[0]["lif:out_spikes"])
    assert runs[0].rates["lif"] > 0
    with pytest.raises(BrainError, match="its kernel is an array, which a file does not hold"):
        write_brain(read.brain, tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record": [3]}, "record\n    it is 3\n    fix: record takes addresses"),
        ({"record": 3}, "record\n    it is 3\n    fix: record takes a list"),
        ({"layout": 3, "mesh": 3, "seed": "x"}, "3 of its arguments"),
        ({"inputs": [1, 2]}, 'inputs takes a dict by name, such as {"drive": 1.0}'),
        (
            {"inputs": {"light": lambda step: "bright"}},
            "'light' returned <U6 for step 0, not numbers",
        ),
        ({"inputs": {"light": lambda step: None}}, "'light' returned object for step 0, not numbers"),
        ({"inputs": {"light": 1j}}, "it holds complex128, and a Brain computes with real numbers"),
        ({"inputs": {"light": lambda step: 1j}}, "returned complex128 for step 0"),
        ({"windows": [(100, 200)], "record": ["*:out_spikes"]}, "begins after the run, which ends at 4 ms"),
    ],
)
def test_arguments_of_another_kind_are_told(options, message):
    with pytest.raises(BrainError) as error:
        run_brain(tiny(), steps=4, **{"inputs": {"light": 1.0}, **options})
    assert message in str(error.value)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("layout", "units"), [("copies", 10**9), ("by-neuron", 10**7), ("by-module", 10**9)])
def test_sizes_are_weighed_before_anything_is_made(layout, units):
    neurons = Neuron(units, delays=N2NDelays(8.0))
    ends = [Connection("inputs:light", "eye:signal"), Connection("eye:spikes", "net:in_spikes")]
    back = Connection("net:out_spikes", "net:in_spikes")
    brain = Brain({"eye": LinearSpiker(), "net": neurons}, [*ends, back], inputs={"light": (3,)})
    assert str(units) in str(brain.inspect())
    program = prepare(BrainRecipe.of(brain, steps=4), layout=layout).program
    assert str(outlay.show(program))
    with pytest.raises(BrainError, match=r"needs .*, and this machine has") as error:
        run_brain(brain, steps=4, layout=layout)
    assert "net.synapses.kernel" in [problem.where for problem in error.value.problems]
    assert "`count` in a file" in str(error.value)
    with pytest.raises(outlay.OutlayError, match="and this machine has"):
        outlay.verify(program)


def test_a_state_that_is_no_number_from_the_start_is_told():
    state = tiny().init(jax.random.key(0))
    state["eye"]["soma"]["potential"] = jnp.full_like(state["eye"]["soma"]["potential"], jnp.nan)
    with pytest.raises(BrainStopped, match="in step 0 of 4: a state is not finite"):
        run_brain(tiny(), steps=4, inputs={"light": LIGHT}, state=state)
