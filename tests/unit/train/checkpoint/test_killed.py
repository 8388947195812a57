"""Real processes and real signals: whatever happens while a checkpoint is written, those before it stay whole."""

import multiprocessing
import random
import time

import jax
import numpy as np
import pytest
from tests.unit.train.checkpoint.saver import NUM_NUMBERS, save_for_ever, save_to_a_full_disk

import outlay
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import CheckpointFolder

pytestmark = pytest.mark.compiles

NUM_KILLS = 10


@pytest.fixture(scope="module")
def processes():
    """Children of a server that has imported everything: a new one starts in a fraction of a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.train.checkpoint.saver", "outlay.train.checkpoint.array_files"])
    return context


def reader():
    def init(key):
        return {"step": 0, "numbers": jax.numpy.zeros(NUM_NUMBERS)}

    def keep(state, batch):
        return state, {}

    return outlay.program(keep, init, np.ones(8), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))


def test_killed_at_any_moment_no_checkpoint_is_lost(processes, tmp_path):
    moments = random.Random(0)
    finished = processes.Value("i", 0)
    program, checkpoints, num_halfway = reader(), Checkpoints(tmp_path), 0
    for number in range(NUM_KILLS):
        before, first = finished.value, max(checkpoints.steps(), default=0) + 1
        saver = processes.Process(target=save_for_ever, args=(tmp_path, first, finished))
        saver.start()
        wait_until(lambda before=before: finished.value > before, saver)
        time.sleep(moments.uniform(0, 0.3))
        saver.kill()
        saver.join(280)
        last = finished.value
        num_halfway += any(tmp_path.glob("*.partial"))
        folder = CheckpointFolder(tmp_path)
        assert [folder.damage(step, contents=True) for step in folder.present()] == [[]] * len(folder.present())
        assert folder.present()[-1] in (last, last + 1), f"kill {number}"
        step, state = checkpoints.restore(program)
        assert (step, int(state["step"])) == (folder.present()[-1], step)
        assert float(state["numbers"].min()) == float(state["numbers"].max()) == step
    assert num_halfway >= NUM_KILLS // 2  # or the kills came between saves, and this tested nothing


def test_a_full_disk_is_an_error_and_loses_nothing(processes, tmp_path):
    report = processes.Queue()
    saver = processes.Process(target=save_to_a_full_disk, args=(tmp_path, report))
    saver.start()
    message, after, in_the_end = (report.get(timeout=280) for _ in range(3))
    saver.join(280)
    assert "the checkpoint of step 2 could not be written" in message
    assert "File too large" in message
    assert after == [1]
    # What the writers of the failed one were still writing goes with a later save.
    steps, names = in_the_end
    assert steps[:2] == [1, 3]
    assert names == [*map(str, steps), "outlay.txt"]


def wait_until(true, process):
    give_up = time.monotonic() + 280
    while not true():
        assert process.is_alive(), f"the saver ended with {process.exitcode}"
        assert time.monotonic() < give_up, "nothing was saved in 60 s"
        time.sleep(0.002)
