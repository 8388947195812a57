"""The terminal of a tutorial: a folder of its own, in which commands run and show what they print."""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def work_in_a_new_folder(*files, commands=()):
    """Go to a new folder that holds copies of these files, and that goes away in the end.

    Args:
        files: programs.
        commands: scripts to find by their names.
    """
    folder = tempfile.mkdtemp(prefix="outlay-")
    found_first = Path(folder, ".bin")
    found_first.mkdir()
    for file in files:
        shutil.copy(HERE / file, folder)
    for command in commands:
        shutil.copy(HERE / command, found_first)
    # Those of the Python that runs this, whatever else is on PATH; tests of this page say what starts sooner.
    outlay = os.environ.get("OUTLAY_COMMAND", f"{shlex.quote(sys.executable)} -m outlay")
    for name, program in {"python": shlex.quote(sys.executable), "outlay": outlay}.items():
        (found_first / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n', encoding="utf-8")
        (found_first / name).chmod(0o755)
    os.environ["PATH"] = f"{found_first}{os.pathsep}{os.environ['PATH']}"
    before = os.getcwd()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(os.chdir, before)
    os.chdir(folder)


def run(command, *, exit_code=0):
    """Run a command as a shell does, print what it prints, and return that.

    Args:
        command: one line, or several.
        exit_code: what it must end with.
    """
    # Notebooks ask for colours, and rich takes that for a terminal.
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    done = subprocess.run(
        ["bash", "-c", command], env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    text = done.stdout.replace(os.path.realpath(os.getcwd()) + "/", "")
    print(text, end="")
    assert done.returncode == exit_code, f"exit code {done.returncode}"
    return text


def of_process(number, text):
    """The lines of one process, without its number before each."""
    return "\n".join(re.findall(rf"^\[{number}\] ?(.*)$", text, re.MULTILINE))
