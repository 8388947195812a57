"""Processes that take steps at their own pace, and wait for one another once."""

import outlay

job = outlay.join()

import time

from jax.experimental.multihost_utils import sync_global_devices

from outlay.jobs import beat

for step in range(1, 4):
    time.sleep(0.1 * job.process)
    print(f"step {step} of process {job.process}")
    beat(step, f"step {step + 1}")

print("here")
sync_global_devices("all are here")
print("all are here")
