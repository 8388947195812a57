"""One process imports JAX and what else programs use, once; the processes that tests start are forks of it.

`python forks.py FOLDER ROOM MODULES` is that process, which has used no device; it ends when its stdin is closed, and
so do its forks. They are asked for by ask_for_fork.py, and /proc shows their arguments and variables as their own.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # as a script it has its own folder first
    sys.path[0] = str(Path(__file__).parents[1])
from tests import ask_for_fork

ROOT = Path(__file__).parents[1]
BRAIN = ROOT / "packages" / "outlay-brain"
_USED = (
    "outlay",  # before JAX, to see what starts it
    *("flax.nnx", "grain", "jax", "matplotlib.backends.backend_agg", "optax", "orbax.checkpoint", "rich.console"),
    *("outlay.cli.main", "outlay.jobs.join", "outlay.launcher.run_job", "outlay.program.make"),
    *("outlay.slurm.slurm_script", "outlay.recipes.choose", "outlay.recipes.digits", "outlay.recipes.lm"),
    *("outlay.recipes.training_run", "outlay.report.run_page", "outlay.report.show", "outlay.search"),
    *("outlay.train.checkpoint.checkpoints", "outlay.train.loop"),
)
_BRAIN = "outlay.brain.run"
# Not Matplotlib's backend for notebooks: imported before there is a kernel, it shows no figure there.
OF_PAGES = ("IPython", "ipykernel.ipkernel", "ipykernel.kernelapp")
_READ_AT_IMPORT = ("JAX_", "JAXLIB_", "PYTHON")
# But not these two, which can be set later as well.
_UNBUFFERED, _PLATFORMS = "PYTHONUNBUFFERED", "JAX_PLATFORMS"
_ON_PARENTS_DEATH = 1
"""PR_SET_PDEATHSIG of Linux."""
_ROOM = "_ROOM"
"""Where /proc looks for the arguments and variables of a fork, those of the server were: there must be room."""
# What Matplotlib and ipykernel read at import: that a kernel draws in its page, and that something started it.
_OF_A_KERNEL = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "JPY_PARENT_PID": "1"}
OF_RUN = "OUTLAY_TEST_FORKS"
"""The folder of the server that the workers of a run share."""
LIFE = "life"
"""A pipe in it, which is open for writing while the run goes on."""
_COMMAND = "OUTLAY_COMMAND"
"""Where `docs/tutorials/programs/terminal.py` finds the `outlay` that is a fork."""


def command(folder: Path) -> list[str]:
    """Return the command to which a program and its arguments are added."""
    return [sys.executable, "-S", "-E", ask_for_fork.__file__, str(folder)]


def write_commands(folder: Path) -> Path:
    """Write an `outlay` and a Jupyter kernel `python3` that are forks; return the folder for `$JUPYTER_PATH`."""
    outlay, kernel = folder / "outlay", folder / "kernels" / "python3" / "kernel.json"
    program = Path(sys.executable).with_name("outlay")
    outlay.write_text(f'#!/bin/sh\nexec {shlex.join([*command(folder), str(program)])} "$@"\n', encoding="utf-8")
    outlay.chmod(0o755)
    kernel.parent.mkdir(parents=True)
    argv = [*command(folder), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    return folder


def start(
    folder: Path, modules: Iterable[str] = (), stdin: int = subprocess.PIPE, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the process that others are forks of; it ends when its stdin is closed.

    Args:
        folder: an empty one, with a path of at most 90 characters, in which it is found.
        modules: imported besides those that are always.
        stdin: a pipe of this process, if none is given.
        options: of `subprocess.Popen`.
    """
    variables = {**options.pop("env", os.environ), _ROOM: " " * 2**15}
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder), " " * 2**12, *modules],
        **options, env=variables, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"
    return server


@functools.cache
def python() -> str:
    """Return the path of a Python that starts in a fraction of a second: what it runs is a fork.

    What a fork starts as `sys.executable` is a fork, too. The server is that of the run of the tests, which the first
    worker starts that needs it: its imports take ten seconds. Without workers it ends with this process.
    """
    of_run = os.environ.get(OF_RUN)
    # In the folder of the run, which also goes where this process is killed.
    folder = Path(of_run or tempfile.mkdtemp(prefix="forks-", dir=_VARIABLES.get("XDG_CACHE_HOME")))
    program = folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            stdin = os.open(folder / LIFE, os.O_RDONLY) if of_run else subprocess.PIPE
            variables = {**_VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, BRAIN)))}
            _servers.append(start(folder, stdin=stdin, env=variables))
            program.write_text(f'#!/bin/sh\nexec {shlex.join(command(folder))} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
    return str(program)


_servers: list[subprocess.Popen[bytes]] = []
"""Those that this process has started, whose pipes stay open."""
_VARIABLES = {**os.environ}
"""As they are before any test changes some."""


def let_workers_share(folder: Path) -> None:
    """Have the workers of this process use one server, which ends with this process.

    Args:
        folder: an empty one, with a path of at most 90 characters.
    """
    os.mkfifo(folder / LIFE)
    os.open(folder / LIFE, os.O_RDWR)  # the server reads the end of it when this process has ended
    os.environ[OF_RUN] = str(folder)


def _serve(folder: Path, modules: Iterable[str]) -> list[str]:
    """Answer callers. Returns in forks, with the program that each is to run and its arguments."""
    del os.environ[_ROOM]
    given = {**os.environ}
    if modules:
        os.environ |= _OF_A_KERNEL
    brain = [_BRAIN] if importlib.util.find_spec(_BRAIN.rpartition(".")[0]) else []  # the tests run without it as well
    for name in (*_USED, *brain, *modules):
        importlib.import_module(name)
    import jax

    from outlay.core.flag_check import check_flags

    check_flags()
    _draw()
    # Such as that the TPU compiler need not look for a TPU, which JAX notes when it is imported.
    noted = {name: text for name, text in os.environ.items() if given.get(name) != text and name not in _OF_A_KERNEL}
    gc.collect()
    gc.freeze()  # looking for garbage would write to memory that forks share
    gc.set_threshold(100_000, 20, 50)  # as in conftest.py
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / ask_for_fork.SOCKET))
    listener.listen(64)
    print("ready", flush=True)
    forks: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor that is ready when the fork has ended
    while True:
        ready, _, _ = select.select([sys.stdin, listener, *forks, *(caller for _, caller in forks.values())], [], [])
        for ended in {*ready} & {*forks}:
            pid, caller = forks.pop(ended)
            _tell(caller, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            caller.close()
            os.close(ended)
        for ended, (pid, caller) in [*forks.items()]:
            if caller in ready or sys.stdin in ready:  # who waits for it has ended
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                caller.close()
                os.close(ended)
                del forks[ended]
        if sys.stdin in ready:
            sys.exit()
        if listener not in ready:
            continue
        caller, _ = listener.accept()
        text, streams, _, _ = socket.recv_fds(caller, 2**16, 3)
        while text and not text.endswith(b"\n"):
            more = caller.recv(2**16)
            text = more and text + more
        if not text:  # the caller has ended
            caller.close()
            for one in streams:
                os.close(one)
            continue
        arguments, place, variables = json.loads(text)
        ended, of_fork = os.pipe()  # what only the fork can write to is closed when it ends
        if not _same_at_import(variables, given):
            _tell(caller, 0)
            caller.close()
            os.close(ended)
        elif pid := os.fork():
            with contextlib.suppress(PermissionError):  # it has done so, and become another program
                os.setpgid(pid, pid)
            forks[ended] = pid, caller
            _tell(caller, pid)
        else:
            _end_with_the_server()
            for one in (listener, caller, *(other for _, other in forks.values())):
                one.close()
            os.environ.clear()
            os.environ.update(noted | variables, PATH=f"{folder}{os.pathsep}{variables['PATH']}")
            os.environ[_COMMAND] = str(folder / "outlay")
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            _show_as_its_own([sys.executable, *arguments])
            os.setpgid(0, 0)
            os.set_inheritable(of_fork, True)  # where it becomes another program, it has not ended
            sys.stdout.reconfigure(line_buffering=os.isatty(1) or bool(os.environ.get(_UNBUFFERED)))
            jax.config.update("jax_platforms", os.environ.get(_PLATFORMS))
            os.chdir(place)
            if (folder / "python").exists():
                sys.executable = str(folder / "python")
            return arguments
        for one in (of_fork, *streams):
            os.close(one)


def _draw() -> None:
    """Draw a page and a picture: their templates are compiled and their fonts read, as each fork would do else."""
    import jax
    from matplotlib.figure import Figure

    import outlay

    outlay.show({"w": jax.ShapeDtypeStruct((8,), "float32")}).to_html()
    figure = Figure()
    figure.subplots().set_title("a title")
    figure.savefig(io.BytesIO())


def _tell(caller: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended
        caller.sendall(b"%d\n" % number)


def _same_at_import(one: dict[str, str], other: dict[str, str]) -> bool:
    names = {name for name in {*one, *other} if name.startswith(_READ_AT_IMPORT)} - {_UNBUFFERED, _PLATFORMS}
    return all(one.get(name) == other.get(name) for name in names)


def _end_with_the_server() -> None:
    """Have this fork killed when the server is, which is what happens to it on Ctrl-C."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ON_PARENTS_DEATH, signal.SIGKILL)


def _show_as_its_own(arguments: list[str]) -> None:
    """Write these arguments, and the variables of this process, where Linux reads those of a process."""
    if sys.platform != "linux":
        return
    first, last, first_variable, last_variable = map(int, Path("/proc/self/stat").read_text().split()[-5:-1])
    variables = [f"{name}={text}" for name, text in os.environ.items()]
    for start, end, words in ((first, last, arguments), (first_variable, last_variable, variables)):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) <= end - start
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run(arguments: list[str]) -> None:
    """Run a program as Python would that is started with these arguments."""
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _end() -> NoReturn:
    """End as Python ends, but for freeing what the fork shares with the server: it would write to all of it first."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    program = _serve(Path(sys.argv[1]), sys.argv[3:])
    try:
        _run(program)
    except SystemExit as end:
        if end.args not in ((), (0,), (None,)):  # its code is for Python alone to ask for, which Outlay notes
            raise
    _end()
