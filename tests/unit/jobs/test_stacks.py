import pytest

from outlay.jobs.left_early import waits_for_others
from outlay.jobs.stacks import waits_outside_python

pytestmark = pytest.mark.processes

OTHER = 'Thread 0x01 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 3 in wait\n\n'


@pytest.mark.parametrize(
    ("innermost", "waits"),
    [
        ("/home/me/train.py", True),
        ("/home/me/.venv/lib/python3.12/site-packages/jax/_src/array.py", True),
        ("/usr/lib/python3.12/threading.py", False),
        ("/usr/lib/python3.12/subprocess.py", False),
    ],
)
def test_where_the_main_thread_waits(innermost, waits):
    main = (
        f'Current thread 0x02 (most recent call first):\n  File "{innermost}", line 1 in f\n  File "/t.py", line 2 in g'
    )
    assert waits_outside_python(OTHER + main) is waits


def test_no_frames_are_no_sign():
    assert not waits_outside_python("")


def test_who_waits_for_a_callback_does_not_wait_for_others():
    main = 'Current thread 0x02 (most recent call first):\n  File "/site-packages/jax/_src/array.py", line 1 in _value'
    callback = (
        'Thread 0x03 (most recent call first):\n  File "/home/me/train.py", line 3 in remote\n'
        '  File "/site-packages/jax/_src/callback.py", line 9 in _callback\n\n'
    )
    assert waits_for_others(OTHER + main)
    assert not waits_for_others(callback + main)
