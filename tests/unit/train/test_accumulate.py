import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import ProgramError
from outlay.train.gradients import strided, sum_over_microbatches


@pytest.mark.compiles
@given(num=st.integers(1, 4), size=st.integers(1, 4))
def test_every_sample_is_in_one_microbatch(num, size):
    parts = strided(np.arange(num * size), num)
    assert parts.shape == (num, size)
    assert sorted(np.ravel(parts).tolist()) == list(range(num * size))


@pytest.mark.compiles
@given(shards=st.sampled_from([1, 2, 4]), num=st.integers(1, 4), each=st.integers(1, 3))
def test_every_microbatch_takes_as_much_from_every_device(shards, num, each):
    """Device d holds a run of neighbours; all microbatches find the same number of their samples there."""
    batch = np.arange(shards * num * each)
    owner = np.asarray(strided(batch, num)) // (num * each)
    assert (owner == np.repeat(np.arange(shards), each)).all()


def test_sums_over_trees():
    samples = {"x": jnp.arange(12.0), "y": jnp.ones((12, 2))}

    def sums(s, last):
        return {"x": s["x"].sum(), "y": s["y"].sum(axis=0)}, s["x"][-1] + last

    got, last = sum_over_microbatches(sums, samples, 3, 100.0)
    assert float(last) == 100.0 + 9 + 10 + 11
    assert float(got["x"]) == 66.0
    assert got["y"].tolist() == [12.0, 12.0]


def test_a_batch_that_does_not_divide_is_refused_with_the_choices():
    message = r"128 / 3 leaves 2 over\n  fix: accumulate=2 or accumulate=4, or a batch of 129 samples"
    with pytest.raises(ProgramError, match=message):
        sum_over_microbatches(lambda x, _: (jnp.sum(x), _), jnp.ones(128), 3)


def test_more_microbatches_than_samples_are_refused():
    with pytest.raises(ProgramError, match=r"fix: accumulate=4, or a batch of 5 samples"):
        sum_over_microbatches(lambda x, _: (jnp.sum(x), _), jnp.ones(4), 5)
