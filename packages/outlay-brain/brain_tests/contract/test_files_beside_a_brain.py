"""What Brains write leaves the files of others as they were, byte for byte."""

import contextlib
import random

import pytest
from brain_tests.unit.brain.run.tiny import tiny
from tests.contract.test_foreign_files import FOREIGN, put, read
from tests.unit.cli.command import ROOT, command_here

import outlay

BRAIN = str(ROOT / "examples" / "ab_brain.toml")


@pytest.mark.thorough  # test_recording_faults.py has each operation
def test_random_operations_of_a_brain_leave_what_others_put_there(tmp_path):
    dice = random.Random(0)
    put(tmp_path, FOREIGN)
    done = 0
    for number in range(30):
        target = str(tmp_path / dice.choice([*FOREIGN, "made.toml", "a.png"]))
        match number % 3:
            case 0:
                done += command_here("brain", "convert", BRAIN, target, cwd=tmp_path).exit_code == 0
            case 1:
                done += command_here("brain", "show", BRAIN, "--picture", target, cwd=tmp_path).exit_code == 0
            case _:
                folder = tmp_path / dice.choice(["recording.zarr", "checkpoints", "collected", "new.zarr"])
                with contextlib.suppress(outlay.OutlayError):
                    outlay.brain.run_brain(tiny(), steps=1, to=folder)
                    done += 1
        assert [name for name, content in FOREIGN.items() if read(tmp_path / name) != content] == [], target
    assert done  # much is refused, and something is done beside what is there
