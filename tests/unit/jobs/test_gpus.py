import pytest

from outlay.core.error_types import LaunchError
from outlay.jobs.job import assign_gpus


@pytest.fixture
def four(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_each_process_gets_its_own(four):
    assert assign_gpus(2, {}, four) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,10"}]


def test_gpus_that_the_user_hides_stay_hidden(four):
    shown = {"CUDA_VISIBLE_DEVICES": "2,10"}
    assert assign_gpus(2, shown, four) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "10"}]


@pytest.mark.parametrize("environment", [{"JAX_PLATFORMS": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_nothing_is_given_where_gpus_are_not_used(four, environment):
    assert assign_gpus(3, environment, four) == [{}, {}, {}]


def test_a_process_alone_keeps_all(four):
    assert assign_gpus(1, {}, four) == [{}]


@pytest.mark.parametrize("num_processes", [3, 8])
def test_gpus_that_cannot_be_shared_out_are_refused(four, num_processes):
    with pytest.raises(
        LaunchError, match=rf"4 GPUs \(0, 1, 2, 10\) .* {num_processes} processes\n  fix: -n 1 or 2 or 4;"
    ):
        assign_gpus(num_processes, {}, four)
