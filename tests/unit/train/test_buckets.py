"""Sequences in buckets: every one once an epoch, one program a shape, one state."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import DataError, ProgramError
from outlay.train.buckets import BucketedData
from outlay.train.loop import fit

RNG = np.random.default_rng(0)
SEQUENCES = [np.full(size, number + 1, np.int32) for number, size in enumerate(RNG.integers(1, 13, 45))]


def data(**options):
    return BucketedData(SEQUENCES, **{"lengths": [4, 8, 16], "batch_size": 8, **options})


def test_every_sequence_stands_in_one_batch_of_an_epoch_and_the_filling_does_not_count():
    examples = data()
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


def test_a_batch_depends_on_seed_and_step_only():
    examples, others = data(), data()
    late, first = others[30], others[0]
    np.testing.assert_array_equal(examples[0]["tokens"], first["tokens"])
    np.testing.assert_array_equal(examples[30]["tokens"], late["tokens"])
    assert any(examples[step]["tokens"].shape != data(seed=1)[step]["tokens"].shape for step in range(8))


def loss(params, batch, keys):
    inside = jnp.arange(batch["tokens"].shape[1])[None] < batch["length"][:, None]
    errors = jnp.square(params["table"][batch["tokens"]] - batch["tokens"] / 45)
    return (errors * inside).sum(axis=1) / batch["length"], {}


@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_one_program_a_bucket_trains_one_state_as_one_device_does(mode):
    examples, optimizer = data(), optax.adam(1e-2)
    step = outlay.train_step(loss, optimizer)
    init = outlay.init_state(lambda key: {"table": jax.random.normal(key, 64)}, optimizer)
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, init, examples.buckets[0], layout=layout, mesh=outlay.mesh(data=8), mode=mode)
    done = fit(program, examples, steps=12, key=jax.random.key(0), progress=False, read_ahead=2)
    state, losses = init(jax.random.key(0)), []
    for number in range(12):
        state, metrics = jax.jit(step)(state, examples[number])
        losses.append(float(metrics["loss"]))
    assert len({examples[number]["tokens"].shape for number in range(12)}) == 3
    np.testing.assert_allclose([metrics["loss"] for metrics in done.history], losses, rtol=1e-5)
    np.testing.assert_allclose(done.state.params["table"], state.params["table"], rtol=1e-5, atol=1e-6)
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
def test_what_fits_no_bucket_is_told(options, message):
    with pytest.raises(DataError, match=message):
        data(**options)
