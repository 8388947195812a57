"""One of two processes that start, add up one number each over all devices, and end: by JAX alone, or with Outlay.

`_started.py` for `outlay launch`; `_started.py RANK PORT` by JAX alone.
"""

import sys

import jax


def main(arguments):
    if arguments:
        jax.distributed.initialize(f"127.0.0.1:{arguments[1]}", num_processes=2, process_id=int(arguments[0]))
    else:
        import outlay

        outlay.join()
    from jax.experimental.multihost_utils import process_allgather

    assert process_allgather(jax.numpy.ones(())).sum() == 2


if __name__ == "__main__":
    main(sys.argv[1:])
