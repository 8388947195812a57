import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.module import BrainError, Port
from outlay.brain.reshape import Concat, Sampler


def test_concat_is_flat_or_of_the_shape_asked_for():
    arrived = {"inputs": jnp.arange(6).reshape(2, 3)}
    assert Concat().outputs({"inputs": (2, 3)}) == {"output": Port("spikes", (6,))}
    assert Concat().step({}, arrived, dt=1.0)[1]["output"].tolist() == [0, 1, 2, 3, 4, 5]
    reshaped = Concat("values", shape=(3, 2))
    assert reshaped.outputs({"inputs": (2, 3)}) == {"output": Port("values", (3, 2))}
    assert reshaped.step({}, arrived, dt=1.0)[1]["output"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(BrainError, match=r"shape \(4, 2\) has 8 elements, and 6 arrive"):
        Concat(shape=(4, 2)).outputs({"inputs": (2, 3)})


def test_a_sample_may_be_larger_than_the_population_and_stays_the_same():
    sampler, spikes = Sampler(50), jnp.arange(6, dtype=jnp.int8).reshape(2, 3)
    state = sampler.init(jax.random.key(0), {"inputs": (2, 3)}, dt=1.0, dtype=jnp.float32)
    after, outputs = sampler.step(state, {"inputs": spikes}, dt=1.0)
    assert set(outputs["output"].tolist()) == {0, 1, 2, 3, 4, 5}
    np.testing.assert_array_equal(outputs["output"], state["indices"])
    np.testing.assert_array_equal(after["indices"], state["indices"])


def test_several_samples_have_a_port_each_and_may_share_nothing():
    sampler, values = Sampler(4, "values", num_outputs=3, disjoint=True), jnp.arange(12.0)
    assert sampler.outputs({"inputs": (12,)}) == {f"output_{k}": Port("values", (4,)) for k in range(3)}
    state = sampler.init(jax.random.key(0), {"inputs": (12,)}, dt=1.0, dtype=jnp.float32)
    _, outputs = sampler.step(state, {"inputs": values}, dt=1.0)
    assert sorted(value for sample in outputs.values() for value in sample.tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Sampler(0), "sample_size is 0\na positive number, such as 1"),
        (Sampler(3, kind="spike"), "kind is 'spike'\n'spikes' or 'values'"),
        (Concat("value"), "kind is 'value'\n'spikes' or 'values'"),
    ],
)
def test_settings_that_cannot_be(module, problem):
    assert module.problems(dt=1.0) == [problem]
