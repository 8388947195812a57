"""The environment variables by which `outlay launch` tells a process its place in the job."""

from __future__ import annotations

PROCESS_ID = "OUTLAY_PROCESS_ID"
NUM_PROCESSES = "OUTLAY_NUM_PROCESSES"
COORDINATOR = "OUTLAY_COORDINATOR"  # host:port
DEVICES_PER_PROCESS = "OUTLAY_DEVICES_PER_PROCESS"  # simulated; not set where attached devices are used
JOB_DIR = "OUTLAY_JOB_DIR"
RESTART = "OUTLAY_RESTART"  # 0 the first time
TOKEN = "OUTLAY_TOKEN"  # known to the processes of the job only; may be set by whoever starts them
STUCK_AFTER = "OUTLAY_STUCK_AFTER"  # seconds, or "off": as --stuck-after, where there is no launcher
LOST_AFTER = "OUTLAY_LOST_AFTER"  # seconds without an answer after which a machine is lost
JOINED = "_OUTLAY_JOINED"  # the process that has taken the place; what it starts inherits it, but not the place
IN_ORDER = "OUTLAY_IN_ORDER"  # set where a process is to mark in its output where a step ends
