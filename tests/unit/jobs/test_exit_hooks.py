import json
import subprocess
import sys

import pytest

from outlay.jobs import exit_hooks

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


@pytest.mark.some_cases(10)
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
        # Python tells nobody that an exception of the program's own making ends it: `sys.exit` does.
        ("raise SystemExit(3)", "None"),
        ("class Own(SystemExit): pass\nraise Own(5)", "None"),
        ("import argparse\nargparse.ArgumentParser().error('wrong')", "2"),
        ("exit(4)", "4"),
        ("quit(4)", "4"),
        ("try:\n    raise SystemExit(7)\nexcept SystemExit as caught:\n    assert caught.code == 7", "None"),
        ("import threading\nthreading.Thread(target=lambda: exit(4)).start()", "None"),
        (
            "saved = []\ntry:\n    sys.exit(7)\nexcept SystemExit as caught:\n    saved.append(caught)\nsys.exit(0)",
            "None",
        ),
        ("def main():\n    try:\n        sys.exit(7)\n    except SystemExit as caught:\n        raise\nmain()", "7"),
        ("from outlay.jobs.stop_request import Stopped\nraise Stopped('saved')", "75"),
        ("sys.excepthook = lambda *_: None\nclass Own(KeyboardInterrupt): pass\nraise Own('here')", "130 of Own: here"),
        (
            "sys.excepthook = lambda *_: None\nclass Bad(Exception):\n    def __str__(self): raise OSError\nraise Bad",
            "13 of Bad: (it has no text: its __str__ raised OSError)",
        ),
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


class Named(type):
    @property
    def __name__(cls):
        raise OSError


class NoText(Exception):
    def __str__(self):
        raise OSError


class NotAText(Exception):
    def __str__(self):
        return 7


class Endless(Exception):
    def __str__(self):
        return str(self)


class Interrupting(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class Ending(Exception):
    def __str__(self):
        sys.exit(0)


class OtherClass(Exception):
    @property
    def __class__(self):
        raise OSError


class NoNotes(Exception):
    @property
    def __notes__(self):
        raise OSError


class NoName(Exception, metaclass=Named):
    pass


class OwnText(str):
    def __str__(self):
        raise OSError

    def partition(self, *_):
        raise OSError


class OfOwnText(Exception):
    def __str__(self):
        return OwnText("mine")


def circle():
    first, second = NoText(), NoText()
    first.__cause__, second.__cause__ = second, first
    return first


ERRORS = {
    **{
        one.__qualname__: one
        for one in (NoText, NotAText, Endless, Interrupting, Ending, OtherClass, NoNotes, OfOwnText)
    },
    "NoName": NoName,
    "group": lambda: ExceptionGroup("several", [NoText(), ExceptionGroup("more", [OtherClass(), Endless()])]),
    "circle": circle,
    "SyntaxError": lambda: SyntaxError(NoText()),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\ud800"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_reason_of_any_exception_is_plain_text(name):
    reason = exit_hooks._reason_of(ERRORS[name]())
    texts = (reason.kind, reason.message, reason.text)
    assert [type(text) for text in texts] == [str] * 3
    assert reason.kind in reason.text
    assert reason.exit_code == 13
    json.dumps(texts).encode()


def test_a_hook_of_the_program_that_fails_is_replaced_by_pythons_text(capsys):
    def fails():
        raise SystemExit

    exit_hooks._shown_somehow(fails, exit_hooks._reason_of(ValueError("planted")))
    assert capsys.readouterr().err == "ValueError: planted\n"
