"""One process of a job that trains the recipe: `same_result_worker.py FOLDER STOP_AT`."""

import json
import sys
from pathlib import Path

import outlay


def main(folder: Path, stop_at: int) -> None:
    job = outlay.join()
    import jax
    from tests.multiprocess.same_result_training import SMALLER, program_of, recipe, sample, train, train_on

    from outlay.recipes import lm

    vars(lm).update(SMALLER)
    trained = recipe()
    program = program_of(trained, jax.device_count())
    outcome = {
        "sample": sample(trained, program),
        "losses": train(trained, program),
        "continued after": train_on(trained, program, folder, stop_at),
    }
    (folder / f"{job.process}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
