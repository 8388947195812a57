import pytest

from outlay.launch.stacks import waits_outside_python

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
