"""Steps that all processes take together, and a fault in one of them: `program.py FAULT PROCESS MARK`.

What is harmless to a job happens in all of them: a forked worker fails. Then the process of that number ends later.
"""

import atexit
import http.server
import os
import signal
import sys
import threading
import time

from outlay.jobs.heartbeat import beat
from outlay.jobs.join import join

FAULT_AT = 3
NUM_STEPS = 6


def main(fault: str, process: int, mark: str) -> None:
    if fault == "never" and int(os.environ["OUTLAY_PROCESS_ID"]) == process:
        with open(mark, "w") as file:
            file.write(repr(time.time()))
        sys.exit(0)
    if fault == "missing" and int(os.environ["OUTLAY_PROCESS_ID"]) == process:
        time.sleep(60)
    if fault == "kill-in-jax":
        import jax  # whose own hook, registered here, comes after the next one

        atexit.register(lambda: joined.process == process and os.kill(os.getpid(), signal.SIGKILL))
    joined = join(timeout=3 if fault == "missing" else 240)
    beat(None, "compiling")
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    ones = jax.make_array_from_callback((jax.device_count(),), split, lambda _: jnp.ones(1))
    add = jax.jit(lambda x: x.sum(), out_shardings=whole)
    for step in range(NUM_STEPS if fault != "endless" else 1_000_000):
        is_hit = process == joined.process and not (fault == "once" and joined.restart)
        if step == FAULT_AT and (is_hit or fault == "harmless"):
            with open(mark, "w") as file:
                file.write(repr(time.time()))
            inject(fault)
        total = float(add(ones))
        if fault == "talk-long":
            print("takes a step", flush=True)
            time.sleep(0.5)
        if fault == "talk":
            print(f"takes step {step + 1}")
            time.sleep(0.3 * joined.process)  # so that process 0 is ahead
        if fault != "early-silent":
            beat(step + 1, f"step {step + 2}", NUM_STEPS)
        if fault == "endless":
            if step == FAULT_AT and joined.process == 0:
                print("running", flush=True)
            time.sleep(0.02)
    if fault == "kill-at-exit" and joined.process == process:
        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    if fault == "upload" and joined.process == process:
        print(f"the other end says {upload()}")
    if fault == "harmless" and joined.process == process:
        time.sleep(4)
        print("slept well")
    print(f"process {joined.process} of {joined.num_processes}: total {total}, restart {joined.restart}")


def upload() -> bytes:
    """Wait in compiled code that is not JAX's, as an upload does, for something that takes a while to answer."""
    import tensorstore

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(5)
            self.send_response(200)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = tensorstore.KvStore.open(f"http://127.0.0.1:{server.server_port}/").result()
    return store.read("x").result().value


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("there is none")


def inject(fault: str) -> None:
    if fault == "no-text":
        raise NoText
    if fault in ("exception", "once"):
        raise ValueError("a planted mistake")
    if fault == "thread":
        threading.Thread(target=lambda: {}["planted"]).start()
        time.sleep(60)
    if fault == "sleep":
        time.sleep(60)
    if fault == "stall":
        time.sleep(70)
    while fault == "spin":
        pass
    if fault == "harmless":
        if not (worker := os.fork()):
            raise ValueError("a worker's mistake")
        print(f"the worker ended with {os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])}")
    if fault in ("early", "early-silent"):
        sys.exit(0)
    if fault == "raise-exit":
        raise SystemExit(3)
    if fault == "code":
        sys.exit(7)
    if fault == "os-exit":
        os._exit(0)
    if fault.startswith("SIG"):  # to itself
        os.kill(os.getpid(), signal.Signals[fault])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
