"""One process imports JAX and all that pages use, once; kernels and commands of pages are forks of it.

`python forks.py FOLDER` is that process. It ends when its stdin is closed, and all that it started ends with it.
`python forks.py FOLDER PROGRAM ARGUMENTS` runs a program as a fork of it: a script, or `-m` and a module, with the
arguments, folder, variables and streams of the caller, which ends as the program ends. Before a fork no device was
used, and XLA reads its flags when one is. Where variables differ that JAX reads at import, the caller becomes the
program itself.
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
from pathlib import Path

_USED = (
    *("IPython", "ipykernel.ipkernel", "ipykernel.kernelapp"),
    *("flax.nnx", "grain", "jax", "matplotlib.figure", "optax", "orbax.checkpoint", "rich.console"),
    *("outlay.brain.run", "outlay.cli.main", "outlay.program", "outlay.recipes.find", "outlay.report"),
    *("outlay.search", "outlay.train"),
)
_READ_AT_IMPORT = ("JAX_", "JAXLIB_", "PYTHON")
_SOCKET = "socket"
_OF_A_KERNEL = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "JPY_PARENT_PID": "1"}
"""What Matplotlib and ipykernel read at import: that a kernel draws in its page, and that something started it."""


def write_commands(folder: Path) -> Path:
    """Write an `outlay` and a Jupyter kernel `python3` that are forks; return the folder for `$JUPYTER_PATH`."""
    start = [sys.executable, "-S", "-E", __file__, str(folder)]
    command, kernel = folder / "outlay", folder / "kernels" / "python3" / "kernel.json"
    program = Path(sys.executable).with_name("outlay")
    command.write_text(f'#!/bin/sh\nexec {shlex.join([*start, str(program)])} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    kernel.parent.mkdir(parents=True)
    argv = [*start, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    return folder


def _serve(folder: Path) -> list[str]:
    """Answer callers. Returns in forks, with the program that each is to run and its arguments."""
    os.environ |= _OF_A_KERNEL
    for name in _USED:
        importlib.import_module(name)
    from outlay.core.flag_check import check_flags

    check_flags()
    gc.collect()
    gc.freeze()  # looking for garbage would write to memory that forks share
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / _SOCKET))
    listener.listen(64)
    signal.signal(signal.SIGCHLD, _wait_for_ended)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os.killpg(0, signal.SIGKILL)
        caller, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return _become(caller, folder)
        caller.close()


def _wait_for_ended(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(caller: socket.socket, commands: Path) -> list[str]:
    """Become what a caller asks for, and return its arguments. Another fork waits, and tells it how that ended."""
    text, streams, *_ = socket.recv_fds(caller, 2**16, 3)
    while more := caller.recv(2**16):
        text += more
    arguments, folder, variables = json.loads(text)
    if _read_at_import(variables) != _read_at_import(os.environ):
        caller.sendall(b"differs")
        os._exit(0)
    if pid := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the caller was killed
            caller.sendall(str(status).encode())
        os._exit(0)
    caller.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    from outlay.core.flag_check import ACCEPTED

    variables |= {ACCEPTED: os.environ.get(ACCEPTED, "")}
    os.environ.clear()
    os.environ.update(variables, PATH=f"{commands}{os.pathsep}{variables['PATH']}")
    return arguments


def _read_at_import(variables: object) -> dict[str, str]:
    return {name: text for name, text in dict(variables).items() if name.startswith(_READ_AT_IMPORT)}


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
    """Have a program run, and end as it ends. A Ctrl-C, which Jupyter sends to kernels, is not for who waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / _SOCKET))
        request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        sent = socket.send_fds(server, [request], [0, 1, 2])
        server.sendall(request[sent:])
        server.shutdown(socket.SHUT_WR)
        answer = server.recv(100)
    if answer == b"differs":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *arguments])
    code = int(answer)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _run(_serve(Path(sys.argv[1])))
    else:
        _ask(Path(sys.argv[1]), sys.argv[2:])
