import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
import atexit, sys
from outlay.jobs.exit_hooks import end_of_program, watch_exits
watch_exits()
def show():
    ended = end_of_program()
    of = f" of {ended.kind}: {ended.message}" if ended and ended.kind != "SystemExit" else ""
    print(f"ends with {ended and ended.exit_code}{of}")
atexit.register(show)
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
        ("raise SystemExit(3)", "3"),
        ("raise SystemExit('wrong')", "1"),
        ("raise SystemExit", "None"),
        ("import argparse\nargparse.ArgumentParser().error('wrong')", "2"),
        ("exit(4)", "4"),
        ("class Own(SystemExit): pass\nraise Own(5)", "5"),
        ("try:\n    raise SystemExit(7)\nexcept SystemExit as caught:\n    assert caught.code == 7", "None"),
        ("import threading\nthreading.Thread(target=lambda: exit(4)).start()", "None"),
        ("sys.excepthook = lambda *_: None\nclass Own(KeyboardInterrupt): pass\nraise Own('here')", "130 of Own: here"),
        ("sys.excepthook = lambda *_: None\n1 / 0", "13 of ZeroDivisionError: division by zero"),
    ],
)
def test_the_exit_code_is_known_at_the_end_if_nobody_caught_it(program, ends_with):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.splitlines()[-1] == f"ends with {ends_with}", done.stderr


def test_the_place_of_an_exit_is_known():
    program = PROGRAM + "def inner():\n    sys.exit(7)\ninner()"
    program = program.replace('print(f"ends', 'print(ended.text)\n    print(f"ends')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert ", in inner\n" in done.stdout
    assert "SystemExit: 7\n" in done.stdout
