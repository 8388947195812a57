"""The same losses in any arrangement of eight devices, and through interruptions that change the arrangement."""

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
    PROCESSES,
    RECIPES,
    SAVE_EVERY,
    SMALLER,
    program_of,
    results,
    sample,
    train,
    train_on,
)
from tests.unit.cli.command import environment, forked_outlay

import outlay
from outlay.recipes import lm
from outlay.train.checkpoint.integrity import Manifest, read_manifest

WORKER = Path(__file__).parent / "same_result_worker.py"
pytestmark = pytest.mark.timeout(600)  # 50 s on a machine that does nothing else
ARRANGEMENTS = sorted({num for numbers in PROCESSES.values() for num in numbers})
"""All numbers of processes."""


@pytest.fixture(scope="module", autouse=True)
def smaller():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(lm, name, value)
        yield


@pytest.fixture(scope="module")
def stops():
    """The steps at which each arrangement is interrupted; then one device trains to the end."""
    return sorted(random.sample(range(SAVE_EVERY, NUM_STEPS), len(ARRANGEMENTS)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, stops):
    """By number of processes, what each of them tells; and the folder of the run that went through all of them."""
    folder = tmp_path_factory.mktemp("trained")
    for name in RECIPES:
        (folder / name).mkdir()
    outcomes = {}
    for num, stop_at in zip(ARRANGEMENTS, stops, strict=True):
        outcomes[num] = launched(num, folder, stop_at) if num > 1 else [results(folder, stop_at)]
    return outcomes, folder


def launched(num_processes, folder, stop_at):
    options = ("-n", str(num_processes), "--devices-per-process", str(8 // num_processes))
    worker = (forks.python(), str(WORKER), str(folder), str(stop_at))
    command = [*forked_outlay(), "launch", *options, "--", *worker]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{num_processes}-{process}.json").read_text()) for process in range(num_processes)]


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request):
    return RECIPES[request.param]()


@pytest.fixture(scope="module")
def one_device(recipe):
    return program_of(recipe, 1)


@pytest.fixture(scope="module")
def losses(recipe, one_device):
    """Of an uninterrupted run on one device."""
    return train(recipe, one_device)


def test_the_losses_are_those_of_one_device(trained, recipe, losses):
    for num_processes in PROCESSES[recipe.name]:
        for one in trained[0][num_processes]:
            np.testing.assert_allclose(one[recipe.name]["losses"], losses, rtol=1e-6, err_msg=f"in {num_processes}")


def test_so_they_are_when_interrupted_and_continued_in_another_arrangement(trained, recipe, one_device, losses, stops):
    outcomes, folder = trained[0], trained[1] / recipe.name
    stop_of = {num: stop for num, stop in zip(outcomes, stops, strict=True) if num in PROCESSES[recipe.name]}
    continued = [outcomes[num_processes][0][recipe.name]["continued after"] for num_processes in stop_of]
    continued.append(train_on(recipe, one_device, folder, NUM_STEPS))
    assert continued == [0, *(stop // SAVE_EVERY * SAVE_EVERY for stop in stop_of.values())]
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [metrics["step"] for metrics in history] == list(range(1, NUM_STEPS + 1))
    np.testing.assert_allclose([metrics["loss"] for metrics in history], losses, rtol=1e-6, err_msg=f"stopped {stops}")
    for step in outlay.Checkpoints(folder / "checkpoints").steps():
        manifest = read_manifest(folder / "checkpoints" / str(step))
        assert isinstance(manifest, Manifest)
        came_to_it = [num for num, stop in stop_of.items() if step <= stop]
        assert manifest.written_by["processes"] == str(came_to_it[0] if came_to_it else 1)


def test_every_process_has_the_text_that_the_model_writes(trained, recipe, one_device):
    text = sample(recipe, one_device)
    assert len(text) == (len("def ") + MAX_SAMPLED if recipe.sample else 0)
    several = PROCESSES[recipe.name][-1]
    assert [one[recipe.name]["sample"] for one in trained[0][several]] == [text] * several
