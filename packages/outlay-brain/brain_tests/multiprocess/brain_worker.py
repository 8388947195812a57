"""One process of a job: a graph split by rows, or part by part, over all devices. The first computes it alone, too.

python brain_worker.py NAME FOLDER
"""

import os
import pickle
import sys
from pathlib import Path

import outlay


def main(name: str, folder: Path) -> None:
    if name == "by-module brain":
        # Parts round alone in the code that users run. Unoptimized, exponentials differ with what stands beside them.
        flags = os.environ.get("XLA_FLAGS", "").split()
        os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if "optimization_level" not in flag)
    job = outlay.join()
    import jax
    from brain_tests.multiprocess.brain_runs import PROGRAMS, RUNS, on_one_device

    layout, run = name.split()
    program, inputs = PROGRAMS[layout](RUNS[run]())
    start = program.init(jax.random.key(0))
    begun = program.gather(start)
    state, outputs = program(start, inputs)
    if layout == "by-module":
        # Each process has only its own parts.
        assert not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(state))
    together = program.gather(state), jax.tree.map(outlay.arrays.gather, outputs)
    alone = on_one_device(RUNS[run](), begun) if job.process == 0 else None
    (folder / f"{name}-{job.process}.pickle").write_bytes(pickle.dumps((together, alone)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
