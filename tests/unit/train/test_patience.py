"""Early stopping counts evaluations, and goes on counting where a run is continued."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.error_types import ProgramError
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.loop import fit
from outlay.train.patience import Patience
from outlay.train.patience_counter import PatienceCounter

LOSSES = [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 2.0, 1.0]
"""What is evaluated after steps 1 to 8: the third is not improved on until the seventh."""


@pytest.fixture
def program():
    def step(state, batch):
        return state + 1, {"loss": batch.mean()}

    layout = outlay.data_parallel()
    return outlay.program(step, lambda key: jnp.zeros((), int), np.ones(8), layout=layout, mesh=outlay.mesh(data=8))


def run(program, *, steps=8, **options):
    return fit(
        program,
        [np.full(8, loss) for loss in LOSSES],
        steps=steps,
        key=None,
        progress=False,
        evaluate=lambda program, state: {"loss": LOSSES[int(state) - 1]},
        evaluate_every=1,
        **options,
    )


@pytest.mark.parametrize(("evaluations", "steps"), [(1, 4), (3, 6), (4, 8)])
def test_training_ends_after_so_many_evaluations_without_an_improvement(program, evaluations, steps):
    done = run(program, patience=Patience(evaluations))
    assert (len(done.history), int(done.state)) == (steps, steps)


def test_patience_that_was_begun_before_an_interruption_goes_on_after_it(program, tmp_path):
    files = {"metrics_path": tmp_path / "metrics.jsonl", "checkpoints": Checkpoints(tmp_path / "saved")}
    patience = Patience(3)
    assert len(run(program, steps=5, patience=patience, **files).history) == 5
    again = run(program, patience=patience, start=files["checkpoints"].restore(program), **files)
    assert [metrics["step"] for metrics in again.history] == [1, 2, 3, 4, 5, 6]
    # Continued once more it has no patience left, and takes no step.
    last = run(program, patience=patience, start=files["checkpoints"].restore(program), **files)
    assert (len(last.history), int(last.state)) == (6, 6)


def test_without_a_metrics_file_it_cannot_go_on(program):
    with pytest.raises(
        ProgramError, match=r"continues after step 2, but patience does not know.*\n  fix: pass metrics_path="
    ):
        run(program, patience=Patience(3), start=(2, jax.jit(jnp.asarray)(2)))


def test_an_accuracy_is_better_when_it_is_larger_and_a_nan_is_no_improvement():
    counter = PatienceCounter(Patience(2, metric="accuracy", larger_is_better=True, min_change=0.1))
    values = [0.5, 0.55, 0.7, float("nan"), 0.75]
    assert [counter.is_used_up_after({"accuracy": value}) for value in values] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("metric", "message"),
    [("evaluate.los", r"watches 'evaluate.los', which is not a metric: did you mean 'evaluate.loss'\?")],
)
def test_a_metric_that_is_not_there_is_named(program, metric, message):
    with pytest.raises(ProgramError, match=message):
        run(program, patience=Patience(3, metric=metric))
    with pytest.raises(ProgramError, match="evaluations=0: patience needs at least 1 evaluation"):
        Patience(0)
