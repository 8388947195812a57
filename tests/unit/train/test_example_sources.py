"""Examples as people have them: pairs, data sets of one example a number, loaders, generators."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.error_types import DataError, ProgramError
from outlay.train.example_sources import as_examples

X = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)
Y = np.arange(40)


class DataSet:
    """As PyTorch has them: a length, and one example for a number."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, number):
        if number >= len(self):  # `iter` of such an object ends here
            raise IndexError(number)
        return self.examples[number]


class Loader:
    """As PyTorch has them: batches, without an index."""

    def __init__(self, dataset, batch_size):
        self.dataset, self.batch_size = dataset, batch_size

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self):
        for start in range(0, len(self.dataset), self.batch_size):
            rows = [self.dataset[number] for number in range(start, min(start + self.batch_size, len(self.dataset)))]
            yield [np.stack([row[0] for row in rows]), np.array([row[1] for row in rows])]


class Tensor:
    """As of TensorFlow: NumPy can have it, and a list of numbers selects nothing of it."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, f"tensor.{array.dtype}"

    def __array__(self, dtype=None, copy=None):
        return self.array


PAIRS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]


@pytest.mark.parametrize(
    "examples",
    [
        (Tensor(X), Tensor(Y)),
        PAIRS,
        DataSet(PAIRS),
        DataSet([{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]),
        (X, Y),
    ],
    ids=["tensors", "pairs", "data set", "data set of dictionaries", "arrays"],
)
def test_batches_are_of_examples(examples):
    want = outlay.TrainData((X, Y), batch_size=16, seed=3)
    got = outlay.TrainData(examples, batch_size=16, seed=3)
    for step in (0, 2):
        for a, b in zip(jax.tree.leaves(got[step]), want[step], strict=True):
            np.testing.assert_array_equal(a, b)
    assert [leaf.shape for leaf in jax.tree.leaves(got.example)] == [(16, 3), (16,)]


def test_only_examples_that_are_asked_for_are_read():
    asked = []

    class Noted(DataSet):
        def __getitem__(self, number):
            asked.append(number)
            return super().__getitem__(number)

    data = outlay.TrainData(Noted(PAIRS), batch_size=4)
    data[5]
    assert asked == data.numbers(5).tolist()
    assert all(type(number) is int for number in asked)


def test_a_data_set_of_grain():
    import grain

    data = outlay.TrainData(grain.MapDataset.source(PAIRS), batch_size=16)
    assert [leaf.shape for leaf in data[0]] == [(16, 3), (16,)]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([(np.ones(3), 0), (np.ones(2), 0)], r"the list: 0 has shape \(3,\) in example 0 and \(2,\) in example 1"),
        (DataSet([(np.ones(3), 0), np.ones(3)]), r"example 1 has other entries than example 0"),
        (DataSet([(np.ones(3), "cat")] * 2), r"the DataSet: 1: text"),
        (DataSet([(np.ma.array(X[0], mask=True), 0)] * 2), r"the DataSet: 0: 3 of 3 values are masked"),
    ],
)
def test_examples_that_make_no_batch(examples, message):
    with pytest.raises(DataError, match=message):
        as_examples(examples)[[0, 1]]


def test_what_can_only_be_iterated_is_named():
    with pytest.raises(ProgramError, match=r"a generator has none\n  fix: list\(it\)"):
        outlay.TrainData((pair for pair in PAIRS), batch_size=16)
    message = r"a Loader has none\n  fix: outlay\.TrainData\(loader\.dataset, batch_size=16\)"
    with pytest.raises(ProgramError, match=message):
        outlay.TrainData(Loader(DataSet(PAIRS), 16), batch_size=16)


def test_a_tree_stays_a_tree():
    """A list of arrays of one length is one: which of both is meant, only its lengths tell."""
    assert [leaf.shape for leaf in outlay.TrainData([X, Y], batch_size=8)[0]] == [(8, 3), (8,)]
    views = [{"x": X}, {"x": X}]
    assert [leaf["x"].shape for leaf in outlay.TrainData(views, batch_size=8)[0]] == [(8, 3), (8, 3)]


@pytest.fixture(scope="module")
def program():
    def step(state, batch):
        x, y = batch
        return {"loss": x.sum(axis=1) + y.astype(jnp.float32)}

    return outlay.program(
        step,
        lambda key: jnp.zeros(()),
        (X[:16], Y[:16]),
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        donate=False,
    )


@pytest.mark.parametrize(
    "examples",
    [
        lambda: (X, Y),
        lambda: PAIRS,
        lambda: DataSet(PAIRS),
        lambda: Loader(DataSet(PAIRS), 16),
        lambda: ((Tensor(X[n : n + 16]), Tensor(Y[n : n + 16])) for n in (0, 16, 32)),
        lambda: iter([(X[:16], Y[:16]), (X[16:21], Y[16:21]), (X[21:], Y[21:])]),
        lambda: ((X[n : n + 7], Y[n : n + 7]) for n in range(0, 40, 7)),
    ],
    ids=["arrays", "pairs", "data set", "loader", "tensors", "iterator", "generator"],
)
def test_an_evaluation_counts_every_example_once(program, examples):
    got = outlay.evaluate(program, jnp.zeros(()), examples())
    assert got == pytest.approx({"loss": float((X.sum(axis=1) + Y).mean())}, rel=1e-6)


def test_a_mapping_in_another_order_is_the_same_batch():
    program = outlay.program(
        lambda state, batch: {"difference": batch["a"] - batch["b"]},
        lambda key: jnp.zeros(()),
        {"a": X[:8, 0], "b": X[:8, 1]},
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        donate=False,
    )
    batch = collections.OrderedDict(b=X[:8, 1], a=X[:8, 0])
    assert outlay.evaluate(program, jnp.zeros(()), iter([batch])) == {"difference": -1.0}
    placed = outlay.TrainData(batch, batch_size=8).on(program)[0]
    np.testing.assert_array_equal(placed["a"] - placed["b"], -np.ones(8))
    with pytest.raises(ProgramError, match=r"the examples have the arrays a, c, and the program's batch has a, b"):
        outlay.TrainData({"a": X[:, 0], "c": X[:, 1]}, batch_size=8).on(program)[0]


def test_an_evaluation_of_nothing(program):
    with pytest.raises(ProgramError, match="there are no examples to evaluate on"):
        outlay.evaluate(program, jnp.zeros(()), iter([]))


def test_a_run_is_told_what_it_needs():
    def step(state, batch):
        return (state + 1, {"loss": batch[0].mean()})

    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)
    program = outlay.program(step, lambda key: jnp.zeros(()), (X[:16], Y[:16]), layout=layout, mesh=mesh)

    def run(data):
        return outlay.fit(program, data, steps=3, key=jax.random.key(0), progress=False)

    with pytest.raises(ProgramError, match=r"a Loader has no indexing\n  fix: outlay\.TrainData\(loader\.dataset"):
        run(Loader(DataSet(PAIRS), 16))
    with pytest.raises(ProgramError, match=r"this is one sample: outlay\.TrainData\(examples, batch_size=16\)"):
        run(DataSet(PAIRS))
    partial = [(X[n : n + 16], Y[n : n + 16]) for n in (0, 16, 32)]
    with pytest.raises(ProgramError, match=r"a last batch of 8 samples: leave it out \(drop_remainder=True"):
        run(partial)
    assert len(run(outlay.TrainData(DataSet(PAIRS), batch_size=16)).history) == 3
