import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.jobs import stop_request
from outlay.jobs.stop_request import Stopped
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.loop import fit
from outlay.train.multihost import AgreedStop

BATCHES = [np.full(8, number, np.float32) for number in range(6)]


class Signalled:
    """Batches, and the signal with the third."""

    def __getitem__(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return BATCHES[step]


@pytest.fixture(autouse=True)
def not_asked(monkeypatch):
    monkeypatch.setattr(stop_request, "_is_requested", False)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def program():
    return outlay.program(
        lambda state, batch: (state + batch.sum(), {"loss": batch.mean()}),
        lambda key: jnp.zeros(()),
        BATCHES[0],
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )


def run(program, data, **options):
    return fit(program, data, steps=6, key=jax.random.key(0), **options)


def test_a_run_that_is_asked_to_stop_saves_and_can_be_continued(program, tmp_path, monkeypatch, capsys):
    checkpoints, path = Checkpoints(tmp_path / "saved"), tmp_path / "metrics.jsonl"
    with pytest.raises(Stopped, match=r"stopped on request after step 3 of 6, saved in .*saved") as stopped:
        run(program, Signalled(), checkpoints=checkpoints, metrics_path=path)
    assert stopped.value.code == 75
    assert capsys.readouterr().err.endswith(f"{stopped.value}\n")
    assert checkpoints.steps() == [3]
    assert len(path.read_text().splitlines()) == 3
    monkeypatch.setattr(stop_request, "_is_requested", False)
    done = run(program, BATCHES, checkpoints=checkpoints, metrics_path=path, start=checkpoints.restore(program))
    assert [metrics["loss"] for metrics in done.history] == [0, 1, 2, 3, 4, 5]


def test_a_run_that_cannot_save_takes_no_notice(program):
    assert len(run(program, Signalled(), progress=False).history) == 6


def test_a_stop_with_the_last_step_changes_nothing(program, tmp_path, monkeypatch):
    class AtTheEnd:
        def __getitem__(self, step):
            monkeypatch.setattr(stop_request, "_is_requested", step == 5)
            return BATCHES[step]

    assert len(run(program, AtTheEnd(), checkpoints=Checkpoints(tmp_path), progress=False).history) == 6


@pytest.mark.parametrize(("taken", "seconds", "until_next"), [(1, 0.001, 1), (100, 10, 50), (3, 0.1, 3), (9, 90, 1)])
def test_processes_ask_again_after_about_five_seconds(monkeypatch, taken, seconds, until_next):
    stop = AgreedStop(first=20)
    monkeypatch.setattr("time.monotonic", lambda: stop._began + seconds)
    assert stop._steps_until_next(20 + taken) == until_next
