"""Numpy onto the devices of two real processes: `outlay.arrays.put` against JAX's two ways.

`make_array_from_callback` by slices is the fastest of JAX's ways, `device_put` the one that everybody writes first: it
sends the whole array around to compare it. Without arguments the script starts both processes.
"""

import os
import socket
import subprocess
import sys

MEBIBYTES = 256
NUM_PROCESSES = 2
DEVICES = 4


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, port]
    workers = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(NUM_PROCESSES)]
    try:
        sys.exit(max(worker.wait(300) for worker in workers))
    finally:
        for worker in workers:
            worker.kill()


def measure(port, rank):
    import jax
    import numpy as np
    from _timing import compare, report
    from jax.sharding import NamedSharding, PartitionSpec

    import outlay

    jax.distributed.initialize(f"127.0.0.1:{port}", NUM_PROCESSES, rank)
    rows = NamedSharding(outlay.mesh(data=NUM_PROCESSES * DEVICES), PartitionSpec("data"))
    value = np.ones((MEBIBYTES * 256, 1024), np.float32)

    def put():
        jax.block_until_ready(outlay.arrays.put(value, rows))

    def by_callback():
        jax.block_until_ready(jax.make_array_from_callback(value.shape, rows, lambda index: value[index]))

    def device_put():
        jax.block_until_ready(jax.device_put(value, rows))

    for one in (put, by_callback, device_put):
        one()
    tested, reference, ratio = compare(put, by_callback, rounds=11, calls=1)
    _, naive, against_naive = compare(put, device_put, rounds=2, calls=1)
    if rank == 0:
        report(f"{MEBIBYTES} MiB on {NUM_PROCESSES} processes", tested, reference, ratio, bar=2.0)
        print(f"device_put: {naive * 1e6:.0f} us, {1 / against_naive:.0f} times as long as outlay.arrays.put")
    jax.distributed.shutdown()


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
