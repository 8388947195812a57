"""One process of a job: waves and a Brain split by rows over all devices of all processes.

python brain_worker.py FOLDER
"""

import pickle
import sys
from pathlib import Path

import outlay


def main(folder: Path) -> None:
    job = outlay.join()
    import jax
    from tests.multiprocess.brain_runs import RUNS, by_neuron_program

    found = {}
    for name, make in RUNS.items():
        program, inputs = by_neuron_program(make())
        found[name] = jax.tree.map(outlay.gather, program(program.init(jax.random.key(0)), inputs))
        found[name] = program.crop(found[name][0]), found[name][1]
    (folder / f"{job.num_processes}-{job.process}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
