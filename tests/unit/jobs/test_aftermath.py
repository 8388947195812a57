import pytest

from outlay.jobs.aftermath import is_echo


@pytest.mark.parametrize(
    "text",
    [
        "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:18316",
        "F client.h:86] Terminating process because the JAX distributed service detected fatal errors.",
        "UNAVAILABLE: Socket closed",
        "Shutdown barrier has failed. Barrier result: 'DEADLINE_EXCEEDED'",
    ],
)
def test_what_the_others_say_when_a_process_has_gone(text):
    assert is_echo(text)


@pytest.mark.parametrize("text", ["a planted mistake", "No space left on device", "RESOURCE_EXHAUSTED: Out of memory"])
def test_what_a_process_says_for_itself(text):
    assert not is_echo(text)
