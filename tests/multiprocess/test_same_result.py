"""The same losses in two processes as on one device, and through interruptions that change the arrangement."""

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests import forks
from tests.multiprocess.same_result_training import (
    MAX_SAMPLED,
    NUM_STEPS,
    SAVE_EVERY,
    SMALLER,
    program_of,
    recipe,
    sample,
    train,
    train_on,
)
from tests.unit.cli.command import environment, forked_outlay

import outlay
from outlay.recipes import lm
from outlay.train.checkpoint.integrity import Manifest, read_manifest

WORKER = Path(__file__).parent / "same_result_worker.py"
NUM_PROCESSES = 2  # in three: test_brain.py
# test_run.py has a smaller model, whole and continued in another number of processes.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def smaller():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(lm, name, value)
        yield


@pytest.fixture(scope="module")
def stops():
    """The steps at which one device is interrupted, and then the processes; then one device trains to the end."""
    return sorted(random.sample(range(SAVE_EVERY, NUM_STEPS), 2))


@pytest.fixture(scope="module")
def one_device(smaller):
    return program_of(recipe(), 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, one_device, stops):
    """What each of the processes tells; and the folder of the run that one device began and they went on with."""
    folder = tmp_path_factory.mktemp("trained")
    assert train_on(recipe(), one_device, folder, stops[0]) == 0
    options = ("-n", str(NUM_PROCESSES), "--devices-per-process", "2")
    command = [*forked_outlay(), "launch", *options, "--", forks.python(), str(WORKER), str(folder), str(stops[1])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(NUM_PROCESSES)], folder


@pytest.fixture(scope="module")
def losses(one_device):
    """Of an uninterrupted run on one device."""
    return train(recipe(), one_device)


def test_the_losses_are_those_of_one_device(trained, losses):
    for one in trained[0]:
        np.testing.assert_allclose(one["losses"], losses, rtol=1e-6)


def test_so_they_are_when_interrupted_and_continued_in_another_arrangement(trained, one_device, losses, stops):
    results, folder = trained
    continued = [*(one["continued after"] for one in results), train_on(recipe(), one_device, folder, NUM_STEPS)]
    first, second = (stop // SAVE_EVERY * SAVE_EVERY for stop in stops)
    assert continued == [first, first, second]
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [metrics["step"] for metrics in history] == list(range(1, NUM_STEPS + 1))
    np.testing.assert_allclose([metrics["loss"] for metrics in history], losses, rtol=1e-6, err_msg=f"stopped {stops}")
    for step in outlay.Checkpoints(folder / "checkpoints").steps():
        manifest = read_manifest(folder / "checkpoints" / str(step))
        assert isinstance(manifest, Manifest)
        processes = NUM_PROCESSES if stops[0] < step <= stops[1] else 1
        assert manifest.written_by["processes"] == str(processes)


def test_every_process_has_the_text_that_the_model_writes(trained, one_device):
    text = sample(recipe(), one_device)
    assert len(text) == len("def ") + MAX_SAMPLED
    assert [one["sample"] for one in trained[0]] == [text] * NUM_PROCESSES
