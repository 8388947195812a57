"""Run a program as a fork of the process in forks.py, and end as it ends: `ask_for_fork.py FOLDER PROGRAM ARGUMENTS`.

The program is a script, `-m` and a module or `-c` and a text. Signals are passed on. Where variables differ in what is
read at import, or Python is given options, this process becomes the program itself instead.
"""

import contextlib
import json
import os
import signal
import socket
import sys

SOCKET = "socket"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def main(folder: str, arguments: list[str]) -> None:
    if arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.path.join(folder, SOCKET))
        request = json.dumps([arguments, os.getcwd(), {**os.environ}]).encode() + b"\n"
        if more := request[socket.send_fds(server, [request], [0, 1, 2]) :]:
            server.sendall(more)
        answers = server.makefile("r", encoding="utf-8")
        if not (pid := int(answers.readline())):
            os.execv(sys.executable, [sys.executable, *arguments])

        def pass_on(number, _):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, number)

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
