"""Two processes, or another number, that take training steps together, when asked."""

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_ANSWER = "loss: "


class Pair:
    """Two processes of one system: started, warmed up, and silent until they are asked for steps."""

    def __init__(self, python, script, *arguments, pinned=False, num_processes=2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.processes = [
            subprocess.Popen(
                [python, script, *arguments, str(rank), port],
                cwd=HERE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=(lambda core=rank: os.sched_setaffinity(0, {core})) if pinned else None,
            )
            for rank in range(num_processes)
        ]
        self.run(3)

    def run(self, num_steps):
        """Let both take steps; return the last loss of each when both are done."""
        for process in self.processes:
            print(num_steps, file=process.stdin, flush=True)
        return [self._answer(process) for process in self.processes]

    def _answer(self, process):
        for line in process.stdout:  # gloo says on stdout that it has connected
            if line.startswith(_ANSWER):
                return float(line.removeprefix(_ANSWER))
        raise RuntimeError("a process of the benchmark died; what it said stands above")

    def stop(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(60)


def serve(run):
    """In the process: take the numbers of steps asked for on stdin, until it closes; answer with the loss."""
    for line in sys.stdin:
        print(f"{_ANSWER}{run(int(line))}", flush=True)
