"""One process of a job that trains the recipes: `same_result_worker.py FOLDER STOP_AT`."""

import json
import sys
from pathlib import Path

import outlay


def main(folder: Path, stop_at: int) -> None:
    job = outlay.join()
    from tests.multiprocess.same_result_training import SMALLER, results

    from outlay.recipes import lm

    vars(lm).update(SMALLER)
    outcome = results(folder, stop_at)
    (folder / f"{job.num_processes}-{job.process}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
