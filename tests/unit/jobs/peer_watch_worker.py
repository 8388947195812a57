"""A process of a job without JAX, and what happens to one of them: `peer_watch_worker.py PROCESS NUM PORT FAULT`."""

import os
import signal
import sys
import time

from outlay.jobs import peer_watch
from outlay.jobs.heartbeat import beat
from outlay.jobs.peer_watch import PeerWatch, leave
from outlay.jobs.process_info import ProcessInfo
from outlay.jobs.rendezvous import meet

NUM_STEPS, FAULT_AT = 40, 10
STUCK_AFTER = {"stop": 3.0, "hang": 3.0, "never": 0.0}
COLLECTIVE = 120  # seconds that a process waits for one that does not come


def main(process: int, num: int, port: str, fault: str) -> None:
    faulty = 0 if fault.endswith("0") else 1
    fault = fault.rstrip("0")
    peer_watch._EVERY = 0.2
    watch = PeerWatch(
        meet(ProcessInfo(process, num, f"127.0.0.1:{port}"), 60), acts=True, stuck_after=STUCK_AFTER.get(fault)
    )
    watch.start()
    for step in range(NUM_STEPS):
        if step == FAULT_AT and process == faulty:
            happens(fault, watch)
        if step == FAULT_AT + 1 and process != faulty:
            meets(fault, watch)
        beat(step + 1, f"step {step + 2}" if step + 1 < NUM_STEPS else "what follows the last step", NUM_STEPS)
        time.sleep(0.02)
    if fault == "goes" and process == faulty:
        os._exit(0)  # a way to end, and how one looks that was killed
    if fault in ("late", "goes") and process != faulty:
        time.sleep(6)
        print("evaluated")
    watch.finish()
    if fault == "fork" and process == faulty:
        os.kill(os.getpid(), signal.SIGKILL)


def happens(fault: str, watch: PeerWatch) -> None:
    if fault == "raise":
        leave(watch.fail(13, "ValueError: planted"))
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "hang":
        time.sleep(COLLECTIVE)
    if fault == "early":
        watch.finish()
        os._exit(0)
    if fault == "echo":
        os._exit(5)
    if fault == "fork" and os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(30)
        os._exit(0)
    if fault == "never":
        time.sleep(5)


def meets(fault: str, watch: PeerWatch) -> None:
    """What the others meet with."""
    if fault in ("stop", "hang", "early"):
        time.sleep(COLLECTIVE)
    if fault == "echo":
        time.sleep(0.5)
        leave(watch.fail(13, "Gloo all-reduce failed: Connection closed by peer", is_echo=True))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
