"""A process whose batch, or folder, is not that of the others is named: the loss is the same in all of them."""

import pytest
from tests.multiprocess import uneven_worker
from tests.multiprocess.run_workers import run_workers


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return run_workers(
        uneven_worker.__file__, tmp_path_factory.mktemp("uneven"), num_processes=2, devices_per_process=1
    )


def test_the_process_whose_batch_is_not_finite_is_named_once(words):
    (first, _), (second, _) = words
    assert first == "process 0 of 2: loss of step 3 is not finite; all values of its own batch are finite\n"
    assert second == "process 1 of 2: loss of step 3 is not finite; image has 1 such value in its own batch\n"


def test_a_folder_of_checkpoints_that_is_not_the_same_in_all_is_called_so(words):
    (_, first), (_, second) = words
    assert first == ""
    assert second.startswith("process 1 on ")
    assert "here it has no mark, so it is not the same folder in all processes" in second
