import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from outlay.launch.exits import end_of_program, exit_and_remember
sys.exit = exit_and_remember
atexit.register(lambda: print("ends with", end_of_program() and end_of_program().exit_code))
{}
"""


@pytest.mark.parametrize(
    ("program", "ends_with"),
    [
        ("sys.exit(7)", "7"),
        ("sys.exit('wrong')", "1"),
        ("sys.exit(0)", "None"),
        ("sys.exit()", "None"),
        ("", "None"),
        ("try:\n    sys.exit(7)\nexcept SystemExit as caught:\n    assert caught.code == 7", "None"),
        ("try:\n    sys.exit(7)\nfinally:\n    print('goes on')", "7"),
    ],
)
def test_the_exit_code_is_known_at_the_end_if_nobody_caught_it(program, ends_with):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == f"ends with {ends_with}", done.stderr
