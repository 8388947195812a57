"""One process of a job: waves and a Brain split by rows over all devices of all processes; of a job of one, not split.

python brain_worker.py FOLDER
"""

import pickle
import sys
from pathlib import Path

import outlay


def main(folder: Path) -> None:
    job = outlay.join()
    import jax
    from tests.multiprocess.brain_runs import PROCESSES, RUNS, by_neuron_program, on_one_device

    def by_neuron(run):
        program, inputs = by_neuron_program(run)
        state, outputs = jax.tree.map(outlay.arrays.gather, program(program.init(jax.random.key(0)), inputs))
        return program.crop(state), outputs

    compute = on_one_device if job.num_processes == 1 else by_neuron
    found = {name: compute(RUNS[name]()) for name, numbers in PROCESSES.items() if job.num_processes in numbers}
    (folder / f"{job.num_processes}-{job.process}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
