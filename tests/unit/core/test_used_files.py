"""The files that a process used, and whether they are the same later; each process is its own, as hooks stay."""

import json
import os
import subprocess
import sys
import time

import pytest

from outlay.core.used_files import are_unchanged

pytestmark = pytest.mark.processes

USES = """
import json, os, socket, subprocess, sys, types
from outlay.core.used_files import UsedFiles
used = UsedFiles(but=["own"])
open("read.txt").close(); os.listdir("listed"); os.path.exists("unasked.txt")
open("written.txt", "w").close(); open("own/entry").close()
try: open("absent.txt")
except OSError: pass
exec(sys.argv[1])
print(json.dumps(used.states(also=[os.path.abspath("maybe.txt")])))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("used")
    for name in ("listed", "own"):
        (folder / name).mkdir()
    for name in ("read.txt", "own/entry", "unasked.txt"):
        (folder / name).write_text("text")
    time.sleep(1.1)  # until they count as settled
    return folder


def used(folder, then=""):
    done = subprocess.run(
        [sys.executable, "-P", "-c", USES, then], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_what_is_read_listed_imported_or_looked_for_counts_and_no_more(folder):
    states = used(folder)
    own_states = {
        os.path.relpath(path, folder): state for path, state in states.items() if path.startswith(str(folder))
    }
    assert set(own_states) == {"read.txt", "listed", "absent.txt", "maybe.txt"}
    assert (own_states["absent.txt"], own_states["maybe.txt"]) == (None, None)
    assert json.__file__ in states
    assert any(".so" in path for path in states), "shared libraries"
    assert are_unchanged(states)


def test_any_change_is_seen_even_if_size_and_time_stay(folder):
    states = used(folder)
    before = (folder / "read.txt").stat()
    for change, undo in (
        (lambda: (folder / "absent.txt").touch(), lambda: (folder / "absent.txt").unlink()),
        (lambda: (folder / "listed" / "new").touch(), lambda: None),
    ):
        assert are_unchanged({path: state for path, state in states.items() if "listed" not in path})
        change()
        assert not are_unchanged(states)
        undo()
    (folder / "read.txt").write_text("TEXT")
    os.utime(folder / "read.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not are_unchanged({path: state for path, state in states.items() if path.endswith("read.txt")})


@pytest.mark.parametrize(
    "then",
    [
        "subprocess.run([sys.executable, '-c', ''])",
        "socket.socket().connect_ex(('127.0.0.1', 9))",
        # In a folder that has been removed: the error is the reader's own, not that of what observes it.
        "here = os.getcwd(); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "try: open('there.txt')\nexcept FileNotFoundError as error: assert error.filename == 'there.txt'\n"
        "os.chdir(here)",
        "open('fresh.txt', 'w').close(); open('fresh.txt').close()",  # a later change could have the same time
    ],
)
def test_what_files_do_not_tell_is_not_known(then, folder):
    assert used(folder, then) is None
