import jax
import numpy as np
import pytest

from outlay.brain.synapses import sum_rows

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("num_columns", [1, 7, 64, 333, 3000])
def test_rows_sum_to_the_same_bits_among_few_rows_and_many(num_columns):
    values = np.random.default_rng(0).random((256, num_columns), np.float32)
    summed = jax.jit(lambda values: sum_rows(lambda columns: values[:, columns], num_columns))
    every = np.asarray(summed(values))
    np.testing.assert_allclose(every, values.astype(np.float64).sum(1), rtol=1e-5)
    for rows in (1, 11, 128):
        np.testing.assert_array_equal(np.asarray(summed(values[20 : 20 + rows])), every[20 : 20 + rows])
