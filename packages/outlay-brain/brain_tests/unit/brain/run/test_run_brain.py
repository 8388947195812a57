import dataclasses

import numpy as np
import pytest
from brain_tests.unit.brain.run.tiny import tiny

import outlay
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.run_brain import run_brain
from outlay.brain.run.run_recipe import BrainRecipeRun
from outlay.brain.run.simulate import BrainStopped
from outlay.recipes.prepare import prepare
from outlay.train.recording import Recording
from outlay.train.run_options import RunOptions
from outlay.train.step_loop import Interrupted

pytestmark = pytest.mark.compiles

STEPS = 400
"""Two chunks of 200: of fewer than 200 that are left, each run would compile a second program."""
LIGHT = np.random.default_rng(0).random((450, 2)).astype(np.float32)
SPIKES, POTENTIAL = "eye:out_spikes", "eye.soma.potential"


def by_hand(light):
    """The potential after each step, and whether there was a spike in it."""
    potential, potentials, spikes = np.float32(0), [], []
    for value in light.mean(1, dtype=np.float32):
        potential += value
        spikes.append(potential > 1)
        potential = np.float32(0) if spikes[-1] else potential
        potentials.append(potential)
    return np.array(potentials), np.array(spikes)


@pytest.fixture(scope="module")
def run():
    return run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=["*:out_spikes", "**.potential"])


def test_a_run_shorter_than_a_chunk_has_one_program_of_its_length():
    run = BrainRecipeRun(prepare(BrainRecipe.of(tiny(), steps=60, chunk=8)), RunOptions())
    assert run.prepared_for(5).program.num_steps_at_once == 5
    assert run.prepared_for(8) is run.prepared_for(9) is run.prepared


def test_it_computes_what_the_brain_computes(run):
    potentials, spikes = by_hand(LIGHT[:STEPS])
    assert spikes.any()
    assert np.array_equal(run[SPIKES], np.repeat(spikes[:, None], 3, 1))
    np.testing.assert_allclose(run[POTENTIAL][:, 0], potentials, atol=1e-5)
    assert run.times.tolist() == list(range(STEPS))


def test_outputs_are_one_entry_a_step(run):
    counted = np.concatenate([[0, 0], 3 * by_hand(LIGHT)[1]])[1 : STEPS + 1]  # a module reads the step before
    assert run.outputs["seen"][:, 0].tolist() == counted.tolist()


def test_rates_are_in_hz(run):
    assert run.rates == pytest.approx({"eye": by_hand(LIGHT[:STEPS])[1].mean() * 1000})
    half = run_brain(tiny(dt=0.5), steps=STEPS, inputs={"light": LIGHT})
    assert half.rates["eye"] == pytest.approx(2 * run.rates["eye"])


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("chunk", [7, 1000])  # others are 200
def test_chunks_change_nothing(run, chunk):
    record = ["*:out_spikes", "**.potential"]
    other = run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=record, chunk=chunk)
    for address in run.recording:
        assert np.array_equal(other[address], run[address])


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("stride", [7, 300])
def test_a_stride_keeps_the_last_of_so_many_steps(run, stride):
    other = run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=[POTENTIAL], stride=stride)
    steps = np.arange(stride - 1, STEPS, stride)
    assert other.times.tolist() == steps.tolist()
    assert np.array_equal(other[POTENTIAL], run[POTENTIAL][steps])
    assert other.rates == run.rates


def test_windows_choose_rows_of_the_same_run(run):
    other = run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=[POTENTIAL], windows=[(10, 20), (300, 1e9)])
    in_windows = [*range(10, 20), *range(300, STEPS)]
    assert other.times.tolist() == in_windows
    assert np.array_equal(other[POTENTIAL], run[POTENTIAL][in_windows])


def test_triggers_choose_rows_around_events():
    light = np.zeros((300, 2), np.float32)
    light[[150, 295]] = 5
    other = run_brain(
        tiny(), steps=300, inputs={"light": light}, record=[SPIKES], triggers=["eye:out_spikes > 50 +- 10"]
    )
    # The mean over 10 ms stays high for 10 steps, or until the run ends.
    assert other.times.tolist() == [*range(140, 170), *range(285, 300)]


def test_a_run_goes_on_from_a_state(run):
    first = run_brain(tiny(), steps=200, inputs={"light": LIGHT[:200]}, record=[POTENTIAL])
    second = run_brain(tiny(), steps=STEPS - 200, inputs={"light": LIGHT[200:]}, record=[POTENTIAL], state=first.state)
    assert np.array_equal(np.concatenate([first[POTENTIAL], second[POTENTIAL]]), run[POTENTIAL])


def test_on_disk_is_what_is_in_memory(run, tmp_path):
    path = tmp_path / "run.zarr"
    run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=["*:out_spikes", "**.potential"], to=path)
    read = Recording.read(path)
    for address in run.recording:
        assert np.array_equal(read[address], run[address])


@pytest.mark.parametrize("layout", ["copies", "by-neuron", "by-module"])
def test_the_same_under_every_layout(run, layout):
    other = run_brain(
        tiny(), steps=STEPS, inputs={"light": LIGHT}, record=["*:out_spikes", "**.potential"], layout=layout
    )
    for address in run.recording:
        assert np.array_equal(other[address], run[address])


def test_a_layout_of_ones_own(run):
    layout = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    other = run_brain(tiny(), steps=STEPS, inputs={"light": LIGHT}, record=[SPIKES], layout=layout)
    assert np.array_equal(other[SPIKES], run[SPIKES])
    assert len(other.state["eye"]["soma"]["potential"].sharding.device_set) == 8


def test_without_a_layout_it_is_on_one_device(run):
    assert len(run.state["eye"]["soma"]["potential"].sharding.device_set) == 1


def test_inputs_that_are_not_finite_stop_the_run_before_their_chunk():
    light = LIGHT.copy()
    light[333, 1] = np.nan
    with pytest.raises(BrainStopped, match=r"light\n    it is nan in step 333 at \[1\]") as caught:
        run_brain(tiny(), steps=STEPS, inputs={"light": light}, record=[SPIKES])
    assert caught.value.num_steps == 200
    assert np.array_equal(caught.value.recording[SPIKES][:, 0], by_hand(LIGHT)[1][:200])


def test_a_state_that_is_not_finite_stops_the_run_and_keeps_what_was_recorded(tmp_path):
    light = LIGHT.copy()
    light[333:335] = 3e38  # their mean overflows
    path = tmp_path / "run.zarr"
    with pytest.raises(BrainStopped) as caught:
        run_brain(tiny(threshold=np.inf), steps=STEPS, inputs={"light": light}, record=[POTENTIAL], to=path)
    text = str(caught.value)
    assert "the run stopped in step 333 of 400" in text
    assert "not finite: eye\n    NaN or infinity in step 333 (333 ms): eye.soma.potential (3 of 3)" in text
    assert f"the recording of the 333 steps before is in {path}" in text
    assert Recording.read(path).steps.tolist() == list(range(333))
    assert np.isfinite(Recording.read(path)[POTENTIAL]).all()


def test_ctrl_c_keeps_what_was_recorded():
    def light(step):
        if step == 420:
            raise KeyboardInterrupt
        return LIGHT[step]

    with pytest.raises(Interrupted, match="stopped after step 200 of 450") as caught:
        run_brain(tiny(), steps=450, inputs={"light": light}, record=[SPIKES])
    assert len(caught.value.partial[SPIKES]) == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"steps": 500}, "there are inputs for 450 steps, but the run needs 500"),
        ({"steps": 5, "stride": 0}, "stride must be a whole number of at least 1"),
        ({"steps": 5, "record": ["eye:spikes"]}, "eye:spikes"),
        ({"steps": 5, "triggers": ["ey:out_spikes > 5"]}, "did you mean 'eye:out_spikes'"),
        ({"steps": 5, "layout": "by-neurons"}, "no layout 'by-neurons': did you mean 'by-neuron'"),
    ],
)
def test_what_cannot_be_run(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        run_brain(tiny(), inputs={"light": LIGHT}, **arguments)
    assert isinstance(caught.value, outlay.OutlayError)


def test_bfloat16_runs():
    narrow = run_brain(dataclasses.replace(tiny(), dtype="bfloat16"), steps=20, record=["**"])
    assert narrow[POTENTIAL].dtype.name == "bfloat16"


def test_a_recording_in_bfloat16_can_be_kept_on_disk(tmp_path):
    narrow = run_brain(dataclasses.replace(tiny(), dtype="bfloat16"), steps=20, record=["**"], to=tmp_path / "r.zarr")
    assert narrow[POTENTIAL].dtype.name == "bfloat16"


def test_it_prints_what_it_came_to(run):
    lines = str(run).splitlines()
    assert lines[0] == "ran       400 steps of 1 ms"
    assert lines[2] == f"rates     eye {run.rates['eye']:.1f} Hz"
    assert lines[3] == "recorded  400 rows of 2 addresses"


def test_only_the_pictures_there_is_something_to_show_on(run):
    assert set(run.figures()) == {"graph", "raster", "rates", "potentials", "weights"}
    assert "potentials" not in run_brain(tiny(), steps=20).figures()
