"""One of two processes, each a stage of a pipeline: `pipelined_worker.py FOLDER WAYS`."""

import json
import sys
from pathlib import Path

import outlay


def main(folder: Path, ways: list[str]) -> None:
    job = outlay.join()
    from tests.multiprocess.pipelined_training import trained

    outcome = {way: trained(way, pipelined=True) for way in ways}
    (folder / f"{job.process}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
