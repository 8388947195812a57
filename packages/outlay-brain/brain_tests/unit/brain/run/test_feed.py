import numpy as np
import pytest

from outlay.brain.module import BrainError
from outlay.brain.run.brain_recipe import waves
from outlay.brain.run.feed import Stimulus, check_finite
from outlay.brain.run.from_file import read_inputs

FLOAT = np.dtype("float32")
SHAPES = {"light": (2,)}


def test_an_array_gives_its_steps():
    feed = Stimulus(SHAPES, {"light": np.arange(10).reshape(5, 2)}, FLOAT)
    assert feed.num_steps == 5
    batch = feed.batch(1, 3)["light"]
    assert batch.tolist() == [[2, 3], [4, 5]]
    assert batch.dtype == FLOAT


@pytest.mark.parametrize("value", [[1.0, 2.0], lambda step: [1.0, 2.0]])
def test_what_is_given_once_holds_for_every_step(value):
    feed = Stimulus(SHAPES, {"light": value}, FLOAT)
    assert feed.num_steps is None
    assert feed.batch(7, 9)["light"].tolist() == [[1, 2], [1, 2]]


def test_a_number_is_spread_over_the_input():
    assert Stimulus(SHAPES, {"light": 0.5}, FLOAT).batch(0, 1)["light"].tolist() == [[0.5, 0.5]]


def test_a_function_sees_the_step_of_the_run():
    feed = Stimulus(SHAPES, {"light": lambda step: [step, 0]}, FLOAT)
    assert feed.batch(198, 202)["light"][:, 0].tolist() == [198, 199, 200, 201]


def test_a_brain_without_inputs_still_says_how_many_steps():
    assert Stimulus({}, {}, FLOAT).batch(3, 5)["step"].tolist() == [3, 4]


def test_all_inputs_that_do_not_fit_are_named():
    with pytest.raises(BrainError) as caught:
        Stimulus({"light": (2,), "sound": ()}, {"light": np.ones((5, 3)), "light_": 1}, FLOAT)
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "sound\n    nothing is given for it; its shape is ()\n    fix: an array of shape (steps,)" in text
    assert "light_\n    the Brain has no such input\n    fix: did you mean 'light'?" in text
    assert "an array of shape (5, 3) is given, and the input has (2,)\n    fix: shape (steps, 2)" in text


def test_text_is_no_input():
    with pytest.raises(BrainError, match="it holds <U3, not numbers"):
        Stimulus(SHAPES, {"light": "0.5"}, FLOAT)


def test_a_function_that_returns_another_shape():
    with pytest.raises(BrainError, match=r"returned shape \(3,\) for step 4, and the input has \(2,\)"):
        Stimulus(SHAPES, {"light": lambda step: np.ones(3)}, FLOAT).batch(4, 5)


def test_nan_is_named_with_step_and_place():
    values = np.zeros((4, 2), np.float32)
    values[2, 1] = np.nan
    with pytest.raises(BrainError, match=r"stopped before step 10(.|\n)*light\n    it is nan in step 12 at \[1\]"):
        check_finite({"light": values}, 10)


def test_waves_are_the_same_in_every_run_and_within_bounds():
    first, second = waves((4,), 1.0), waves((4,), 1.0)
    values = np.stack([first(step) for step in range(1000)])
    assert np.array_equal(values[500], second(500))
    assert np.abs(values).max() <= 1
    assert (values.std(0) > 0.5).all()


def test_waves_pass_in_time_and_not_in_steps():
    np.testing.assert_allclose(waves((3,), 0.5)(200), waves((3,), 1.0)(100))


def test_inputs_are_read_from_files(tmp_path):
    array = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", light=array, other=array + 1)
    np.savetxt(tmp_path / "x.csv", array, delimiter=",")
    (tmp_path / "named.csv").write_text("left,right\n0,1\n2,3\n4,5\n")
    words = [f"light={tmp_path}/{name}" for name in ("x.npy", "x.npz", "x.csv", "named.csv")]
    for word in words:
        assert np.array_equal(read_inputs([word])["light"], array), word
    assert read_inputs(["light=0.25", f"other={tmp_path}/x.npz"])["light"] == 0.25


def test_zarr_is_read(tmp_path):
    import tensorstore

    array = np.arange(6.0).reshape(3, 2)
    for driver, key in (("zarr", "dtype"), ("zarr3", "data_type")):
        data_type = "<f8" if driver == "zarr" else "float64"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/{driver}/"}}
        spec["metadata"] = {"shape": [3, 2], key: data_type}
        tensorstore.open(spec, create=True).result()[...].write(array).result()
        assert np.array_equal(read_inputs([f"light={tmp_path}/{driver}"])["light"], array)


def test_all_words_that_are_no_inputs_are_named(tmp_path):
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(BrainError) as caught:
        read_inputs(["light", f"light={tmp_path}/none.npy", f"light={tmp_path}/x.txt"])
    assert len(caught.value.problems) == 3
    for what in ("it names no input", "there is no file", ".txt is not a format that is known"):
        assert what in str(caught.value)
