"""One process imports JAX and what else pages use, once; the kernels and `outlay` commands of pages are forks of it.

`python forks.py FOLDER` is that process, which has used no device. When its stdin is closed it ends, and so do its
forks. `python forks.py FOLDER PROGRAM ARGUMENTS` runs a program as a fork of it, a script or `-m` and a module: with
the arguments, folder, variables and streams of the caller, which passes signals on and ends as the program ends. Where
the caller's variables differ in what is read at import, it becomes the program itself instead.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import warnings
from pathlib import Path

_USED = (
    *("IPython", "ipykernel.ipkernel", "ipykernel.kernelapp", "matplotlib.figure", "matplotlib_inline.backend_inline"),
    *("flax.nnx", "grain", "jax", "optax", "orbax.checkpoint", "rich.console"),
    *("outlay.brain.run", "outlay.cli.main", "outlay.recipes.choose", "outlay.report", "outlay.search", "outlay.train"),
)
_READ_AT_IMPORT = ("JAX_", "JAXLIB_", "PYTHON")
# What Matplotlib and ipykernel read at import: that a kernel draws in its page, and that something started it.
_OF_A_KERNEL = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "JPY_PARENT_PID": "1"}
_SOCKET = "socket"
_COMMAND = "OUTLAY_COMMAND"
"""Where `docs/tutorials/programs/terminal.py` finds the `outlay` that is a fork."""


def command(folder: Path) -> list[str]:
    """Return the command to which a program and its arguments are added."""
    return [sys.executable, "-S", "-E", __file__, str(folder)]


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


def _serve(folder: Path) -> list[str]:
    """Answer callers. Returns in forks, with the program that each is to run and its arguments."""
    given = {**os.environ}
    os.environ |= _OF_A_KERNEL
    for name in _USED:
        importlib.import_module(name)
    from outlay.core.flag_check import check_flags

    check_flags()
    # Such as that the TPU compiler need not look for a TPU, which JAX notes when it is imported.
    noted = {name: text for name, text in os.environ.items() if given.get(name) != text and name not in _OF_A_KERNEL}
    gc.collect()
    gc.freeze()  # looking for garbage would write to memory that forks share
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / _SOCKET))
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
        for pid, caller in forks.values():
            if caller in ready or sys.stdin in ready:  # who waits for it has ended
                os.killpg(pid, signal.SIGKILL)
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
            continue
        arguments, place, variables = json.loads(text)
        ended, of_fork = os.pipe()  # what only the fork can write to is closed when it ends
        if not _same_at_import(variables, given):
            _tell(caller, 0)
            caller.close()
            os.close(ended)
        elif pid := os.fork():
            os.setpgid(pid, pid)
            forks[ended] = pid, caller
            _tell(caller, pid)
        else:
            for one in (listener, caller, *(other for _, other in forks.values())):
                one.close()
            os.environ.clear()
            os.environ.update(noted | variables, PATH=f"{folder}{os.pathsep}{variables['PATH']}")
            os.environ[_COMMAND] = str(folder / "outlay")
            os.setpgid(0, 0)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.chdir(place)
            return arguments
        for one in (of_fork, *streams):
            os.close(one)


def _tell(caller: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended
        caller.sendall(b"%d\n" % number)


def _same_at_import(one: dict[str, str], other: dict[str, str]) -> bool:
    return all(one.get(name) == other.get(name) for name in {*one, *other} if name.startswith(_READ_AT_IMPORT))


def _run(arguments: list[str]) -> None:
    """Run a program as Python would that is started with these arguments."""
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _ask(folder: Path, arguments: list[str]) -> None:
    """Have a program run, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / _SOCKET))
        request = json.dumps([arguments, os.getcwd(), {**os.environ}]).encode() + b"\n"
        if more := request[socket.send_fds(server, [request], [0, 1, 2]) :]:
            server.sendall(more)
        answers = server.makefile("r", encoding="utf-8")
        if not (pid := int(answers.readline())):
            os.execv(sys.executable, [sys.executable, *arguments])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _run(_serve(Path(sys.argv[1])))
    else:
        _ask(Path(sys.argv[1]), sys.argv[2:])
