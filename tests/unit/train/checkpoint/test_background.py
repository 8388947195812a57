import threading

import pytest

from outlay.core.error_types import CheckpointError
from outlay.train.checkpoint.array_files import InBackground


def test_a_function_runs_in_the_background_and_is_waited_for():
    go, done = threading.Event(), []
    running = InBackground(lambda: (go.wait(280), done.append(True)), "it failed")
    assert not done
    go.set()
    running.finish()
    assert done


def test_an_error_in_the_background_is_raised_with_its_cause():
    def fail():
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 3 was not written: OSError: \[Errno 28\] No space left"):
        InBackground(fail, "step 3 was not written").finish()
