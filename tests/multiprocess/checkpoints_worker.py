"""One process of a job that trains on from whatever checkpoint is there: `ID NUM_PROCESSES PORT FOLDER`."""

import json
import sys
from pathlib import Path

import jax

if __name__ == "__main__":
    process, num_processes, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
    sys.path.insert(0, str(Path(__file__).parents[2]))

    from tests.multiprocess.checkpoints_training import train_on

    found = train_on(folder / "checkpoints", int((folder / "num_steps").read_text()))
    (folder / f"{process}.json").write_text(json.dumps(found))
