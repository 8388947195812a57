import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from outlay.core.error_types import ProgramError
from outlay.datasets.examples import Examples
from outlay.train.data import TrainData, eval_batches

EXAMPLES = {"x": np.arange(10), "y": np.arange(10) ** 2}


def test_a_batch_depends_on_nothing_but_its_number():
    data = TrainData(EXAMPLES, batch_size=4, seed=1)
    later = [data[step]["x"].tolist() for step in range(20)]
    assert TrainData(EXAMPLES, batch_size=4, seed=1)[17]["x"].tolist() == later[17]
    assert data[np.int32(3)]["x"].tolist() == later[3]


def test_rows_stay_together():
    batch = TrainData(EXAMPLES, batch_size=4)[5]
    assert (batch["y"] == batch["x"] ** 2).all()


def test_every_epoch_sees_every_example_once_in_an_order_of_its_own():
    data = TrainData(EXAMPLES, batch_size=5, seed=0)
    epochs = [np.concatenate([data[2 * epoch]["x"], data[2 * epoch + 1]["x"]]).tolist() for epoch in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 4


def test_another_seed_is_another_order():
    orders = [TrainData(EXAMPLES, batch_size=10, seed=seed)[0]["x"].tolist() for seed in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_must_fit(batch_size):
    with pytest.raises(ProgramError, match=f"batch_size={batch_size} does not fit 10 examples"):
        TrainData(EXAMPLES, batch_size=batch_size)


@given(num=st.integers(1, 30), batch_size=st.integers(1, 12))
def test_evaluation_counts_every_example_once(num, batch_size):
    batches = list(eval_batches(np.arange(num), batch_size))
    assert all(batch.shape == weights.shape == (batch_size,) for batch, weights in batches)
    counted = np.concatenate([batch[weights == 1] for batch, weights in batches])
    assert counted.tolist() == list(range(num))
    assert len(batches) == -(-num // batch_size)


def squares(num=10):
    """As `EXAMPLES`, in no memory; it keeps what was read."""
    read = []

    def of(numbers):
        read.append(sorted(numbers.tolist()))
        return {"x": numbers.astype(np.int32), "y": (numbers**2).astype(np.int32)}

    return Examples(num, of, "squares"), read


def test_examples_in_files_are_those_in_memory_and_only_a_batch_is_read():
    files, read = squares()
    of_files, of_memory = TrainData(files, batch_size=4, seed=1), TrainData(EXAMPLES, batch_size=4, seed=1)
    jax.tree.map(np.testing.assert_array_equal, of_files[7], of_memory[7])
    assert read == [sorted(of_memory[7]["x"].tolist())]
    batches = [list(eval_batches(examples, 4)) for examples in (files, EXAMPLES)]
    jax.tree.map(np.testing.assert_array_equal, *batches)
    with pytest.raises(ProgramError, match=r"batch_size=11 does not fit 10 examples of squares\n  fix: a batch of 10"):
        TrainData(files, batch_size=11)


def test_batches_on_a_program_are_placed_and_read_once():
    files, read = squares(64)
    data = TrainData(files, batch_size=16)
    layout, mesh = outlay.Layout([("batch.x", outlay.replicate())]) + outlay.data_parallel(), outlay.mesh(data=8)
    program = outlay.program(lambda s, b: (s, {"x": b["x"].sum()}), lambda k: 0.0, data[0], layout=layout, mesh=mesh)
    read.clear()
    batch = data.on(program)[3]
    assert len(read) == 1
    assert batch["y"].sharding.shard_shape((16,)) == (2,)
    jax.tree.map(np.testing.assert_array_equal, batch, data[3])
