import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from outlay.core.error_types import DataError, ProgramError
from outlay.datasets.examples import Examples
from outlay.train.data import BucketedData, TrainData, eval_batches
from outlay.train.loop import fit

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


# Sequences in buckets: every one once an epoch, one program a shape, one state.
RNG = np.random.default_rng(0)
SEQUENCES = [np.full(size, number + 1, np.int32) for number, size in enumerate(RNG.integers(1, 13, 45))]


def bucketed(**options):
    return BucketedData(SEQUENCES, **{"lengths": [4, 8, 16], "batch_size": 8, **options})


def test_every_sequence_stands_in_one_batch_of_an_epoch_and_the_filling_does_not_count():
    examples = bucketed()
    for epoch in range(2):
        seen = collections.Counter()
        for step in range(epoch * examples.batches_per_epoch, (epoch + 1) * examples.batches_per_epoch):
            batch = examples[step]
            for row, size, weight in zip(batch["tokens"], batch["length"], batch["weight"], strict=True):
                number = row[0] - 1
                np.testing.assert_array_equal(row[:size], SEQUENCES[number])
                assert not row[size:].any()
                assert size > {4: 0, 8: 4, 16: 8}[len(row)]
                seen[number] += int(weight)
        assert seen == dict.fromkeys(range(45), 1)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (np.full(3, 0.5), r"sequence 1 is float64\[3\], and sequence 0 is int32\[3\]"),
        (np.ones((3, 2), np.int32), r"sequence 1 is int32\[3, 2\], and sequence 0 is int32\[3\]"),
        (np.ma.array([1, 2, 3], mask=[0, 0, 1]), r"sequence 1 holds what JAX cannot: 1 of 3 values are masked"),
    ],
)
def test_a_sequence_that_numpy_would_cut_to_fit_is_refused(odd, message):
    with pytest.raises(DataError, match=message):
        BucketedData([np.arange(3, dtype=np.int32), odd], lengths=[4], batch_size=2)


def test_a_batch_depends_on_seed_and_step_only():
    examples, others = bucketed(), bucketed()
    late, first = others[30], others[0]
    np.testing.assert_array_equal(examples[0]["tokens"], first["tokens"])
    np.testing.assert_array_equal(examples[30]["tokens"], late["tokens"])
    assert any(examples[step]["tokens"].shape != bucketed(seed=1)[step]["tokens"].shape for step in range(8))


def loss(params, batch, keys):
    inside = jnp.arange(batch["tokens"].shape[1])[None] < batch["length"][:, None]
    errors = jnp.square(params["table"][batch["tokens"]] - batch["tokens"] / 45)
    return (errors * inside).sum(axis=1) / batch["length"], {}


BUCKETS_OPTIMIZER = optax.adam(1e-2)
train_on_buckets = outlay.train_step(loss, BUCKETS_OPTIMIZER)
init_for_buckets = outlay.init_state(lambda key: {"table": jax.random.normal(key, 64)}, BUCKETS_OPTIMIZER)


@pytest.fixture(scope="module")
def on_one_device():
    """The parameters after twelve steps, and the losses."""
    examples, step = bucketed(), jax.jit(train_on_buckets)
    state, losses = init_for_buckets(jax.random.key(0)), []
    for number in range(12):
        state, metrics = step(state, examples[number])
        losses.append(float(metrics["loss"]))
    return state.params, losses


@pytest.mark.thorough  # test_fit_options.py has buckets, in processes
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_one_program_a_bucket_trains_one_state_as_one_device_does(mode, on_one_device):
    examples, (params, losses) = bucketed(), on_one_device
    step, init = train_on_buckets, init_for_buckets
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, init, examples.buckets[0], layout=layout, mesh=outlay.mesh(data=8), mode=mode)
    done = fit(program, examples, steps=12, key=jax.random.key(0), progress=False, read_ahead=2)
    assert len({examples[number]["tokens"].shape for number in range(12)}) == 3
    np.testing.assert_allclose([metrics["loss"] for metrics in done.history], losses, rtol=1e-5)
    np.testing.assert_allclose(done.state.params["table"], params["table"], rtol=1e-5, atol=1e-6)
    assert done.state.params["table"].sharding.spec == program.plan["params.table"].spec
    with pytest.raises(ProgramError, match=r"steps_per_call=2: the steps of a call need batches of one shape"):
        fit(program, examples, steps=4, key=jax.random.key(0), progress=False, steps_per_call=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [8, 4]}, r"lengths=\[8, 4\]: give the lengths of the buckets, ascending"),
        ({"batch_size": 0}, r"batch_size=0: a batch needs at least 1 sequence"),
        (
            {"lengths": [4, 8]},
            r"sequences of 45 fit in no bucket of 8, such as sequence \d+ of length \d+\n  fix: .*12",
        ),
    ],
)
def test_sequences_that_fit_no_bucket_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        bucketed(**options)
