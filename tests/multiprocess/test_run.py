"""`outlay run --processes`: one recipe over real processes, with the results of one."""

import json

import pytest
from tests.unit.cli.command import LINE, outlay_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one_and_leave_one_run_folder(folder):
    common = (LINE, "--devices", "4", "--layout", "fsdp", "--steps", "4", "--checkpoint-every", "2")
    alone = outlay_command("run", *common, "--run-dir", "alone", cwd=folder)
    together = outlay_command("run", *common, "--run-dir", "together", "--processes", "2", cwd=folder)
    assert alone.returncode == together.returncode == 0, together.stderr
    assert losses(folder / "together") == pytest.approx(losses(folder / "alone"), rel=1e-6)
    assert together.stdout.count("held out") == 1
    names = [sorted(path.name for path in (folder / run).iterdir()) for run in ("alone", "together")]
    assert names[0] == names[1]


def test_a_run_goes_on_in_another_number_of_processes(folder):
    resumed = outlay_command(
        *("run", LINE, "--devices", "4", "--layout", "dp", "--steps", "6", "--run-dir", "together", "--resume"),
        *("--processes", "4"),
        cwd=folder,
    )
    assert resumed.returncode == 0, resumed.stderr
    whole = outlay_command(
        *("run", LINE, "--devices", "1", "--layout", "dp", "--steps", "6", "--run-dir", "whole"), cwd=folder
    )
    assert whole.returncode == 0, whole.stderr
    assert losses(folder / "together") == pytest.approx(losses(folder / "whole"), rel=1e-5)


def test_a_run_folder_that_is_full_ends_all_processes_with_the_reason(folder):
    again = outlay_command(
        *("run", LINE, "--devices", "4", "--steps", "1", "--run-dir", "alone", "--processes", "2"), cwd=folder
    )
    assert again.returncode == 2
    assert "the run folder alone exists" in again.stderr


def test_devices_that_cannot_be_shared_are_refused(folder):
    refused = outlay_command("run", LINE, "--devices", "4", "--processes", "3", cwd=folder)
    assert refused.returncode == 2
    assert "4 devices cannot be shared evenly by 3 processes" in refused.stderr
