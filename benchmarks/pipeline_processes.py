"""A pipeline of two processes over gloo, 1F1B: stages of Outlay in mode placed, with torch.distributed.pipelining.

4 layers of 1024, Adam. Every system has two processes of its own; they take turns, and each waits in silence meanwhile.
"""

import sys

from _mlp import BATCH
from _pair import Pair
from processes import measure, parser_of, python_with_torch

MICROBATCHES = 4
BAR = 1.0


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--busy", action="store_true", help="count rounds with other work on the machine too")
    options = parser.parse_args()
    torch_python = python_with_torch(options)
    print("2 processes for each system, each on a core of its own; 4 x 1024 MLP, Adam, 4 microbatches, 1F1B, gloo")
    for samples in (BATCH, 4 * BATCH):
        arguments = (str(samples), str(MICROBATCHES))
        of_torch = Pair(torch_python, "_torch_stages_worker.py", *arguments, pinned=True)
        of_outlay = Pair(sys.executable, "_stages_worker.py", "1f1b", *arguments, pinned=True)
        what = f"batch {samples}"
        measure(what, of_outlay, "torch", of_torch, BAR, options.rounds, busy=options.busy)
        of_outlay.stop(), of_torch.stop()


if __name__ == "__main__":
    main()
