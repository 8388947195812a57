"""One process of a job: a graph split by rows over the devices of all. The first also computes it on one device.

python brain_worker.py NAME FOLDER
"""

import pickle
import sys
from pathlib import Path

import outlay


def main(name: str, folder: Path) -> None:
    job = outlay.join()
    import jax
    from tests.multiprocess.brain_runs import RUNS, by_neuron_program, on_one_device

    program, inputs = by_neuron_program(RUNS[name]())
    start = program.init(jax.random.key(0))
    begun = program.crop(jax.tree.map(outlay.arrays.gather, start))
    state, outputs = jax.tree.map(outlay.arrays.gather, program(start, inputs))
    together = program.crop(state), outputs
    alone = on_one_device(RUNS[name](), begun) if job.process == 0 else None
    (folder / f"{name}-{job.process}.pickle").write_bytes(pickle.dumps((together, alone)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
