# ---
# jupytext:
#   text_representation:
#     extension: .py
#     format_name: percent
# kernelspec:
#   display_name: Python 3
#   language: python
#   name: python3
# ---

# %% tags=["remove-cell"]
import sys
from pathlib import Path

sys.path.insert(0, str(Path(globals().get("__file__", "here")).resolve().parent / "programs"))

# %% [markdown]
# # When something dies
#
# The processes of a job depend on each other: in every collective, each waits for all others. So if one dies, hangs
# or exits early, the rest would wait, in plain JAX for five minutes or forever. This tutorial kills processes,
# and looks at three things: how soon all have ended, what the messages say, and what is lost.

# %%
import json
import os
import re
import signal
import subprocess
import time

import numpy as np
import terminal

terminal.work_in_a_new_folder("mistake.py", "stuck.py")

# %% [markdown]
# ## A process is killed
#
# First, for comparison, an undisturbed run on one device:

# %%
printed = terminal.run("""
outlay run digits --devices 1 --layout dp --steps 30 --run-folder undisturbed 2> progress.txt |
  grep -e 'ran  ' -e 'training  '
""")

# %% [markdown]
# Now the same training in two processes with four devices each. The run saves a checkpoint every five steps. As soon
# as that of step 10 exists, process 1 is killed with SIGKILL, which a process cannot catch; the system sends it as well
# when memory runs out.

# %%
job = subprocess.Popen(
    "exec outlay run digits --processes 2 --devices 8 --layout fsdp --steps 300 --checkpoint-every 5 --run-folder run"
    " > job.out 2>&1",
    shell=True,
)
while job.poll() is None and not Path("run/checkpoints/10").is_dir():
    time.sleep(0.01)
pids = [int(pid) for pid in re.findall(r"^ +\d+  \S+ +(\d+)  \d+ x cpu", Path("job.out").read_text(), re.MULTILINE)]
os.kill(pids[1], signal.SIGKILL)
start = time.monotonic()
job.wait()
print(f"exit code {job.returncode} after {time.monotonic() - start:.1f} s; what was said last:")
print(Path("job.out").read_text().splitlines()[-1])

assert job.returncode == 128 + signal.SIGKILL
assert "process 1 of 2 failed first: ended by SIGKILL" in Path("job.out").read_text()

# %% [markdown]
# All processes have ended. Process 0 was in the middle of a collective with a dead process, and reported it at length.
# Those messages go to a file, since they say nothing about the cause.

# %%
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        print(f"process {pid} has gone")
    else:
        raise AssertionError(f"process {pid} was left behind")

# %% [markdown]
# Only the steps after the last checkpoint are lost. The process may have been killed while it saved the next one, but a
# checkpoint gets its name only when it is complete.

# %%
printed = terminal.run("outlay checkpoint show run | head -n 1")
saved = [int(step) for step in re.findall(r"\d+", printed.partition("steps")[2])]
assert {5, 10} & set(saved)
assert all(step % 5 == 0 for step in saved)

# %% [markdown]
# The run continues from there, in one process with the remaining four devices:

# %%
printed = terminal.run("""
outlay run digits --devices 4 --layout fsdp --steps 30 --run-folder run --resume 2> progress.txt |
  grep -e 'ran  ' -e 'training  '
""")


# %%
def losses(run):
    lines = Path(run, "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


difference = np.abs(losses("run") / losses("undisturbed") - 1).max()
print(f"{len(losses('run'))} steps; largest relative difference from the run on one device: {difference:.1e}")
assert len(losses("run")) == len(losses("undisturbed")) == 30
assert difference < 1e-5

# %% [markdown]
# Batches, dropout and the order of examples depend on the step, not on a process. So the losses are
# those of the undisturbed run, up to the order of summation.
#
# ## A mistake in one process
#
# ```{literalinclude} programs/mistake.py
# :language: python
# ```
#
# The full traceback of the process that failed first comes last. With `--max-restarts`, the job then restarts,
# `outlay.join().restart` counts the restarts, and `outlay run` continues from the last checkpoint.

# %%
start = time.monotonic()
printed = terminal.run("outlay launch -n 2 --devices-per-process 4 --max-restarts 1 -- python mistake.py")
seconds_of_a_job = time.monotonic() - start
failed, _, again = printed.partition("restart 1 of 1")
assert "process 1 of 2 failed first: KeyError, exit code 13" in failed
assert failed.rstrip().endswith("KeyError: 'learnig_rate'")
assert again.count("the sum is 28.0") == 2

# %% [markdown]
# ## A process is stuck
#
# ```{literalinclude} programs/stuck.py
# :language: python
# ```
#
# Nothing fails here: both processes wait. Only you know how long is too long, or the steps that the job has taken so
# far. This example uses the duration of the whole job above, which started and compiled twice. Without a heartbeat for
# that long, all processes print their stacks, and the job ends:

# %%
printed = terminal.run(
    f"outlay launch -n 2 --devices-per-process 4 --stuck-after {seconds_of_a_job:.0f} -- python stuck.py",
    exit_code=1,
)
assert "the job is stuck" in printed
assert "in next_batch" in printed.partition("process 1 is here:")[2]

# %% [markdown]
# Process 1 hangs in `next_batch`, and process 0 waits for it.
#
# ## Every way to die
#
# `benchmarks/faults.py` measures all of these events with two processes, real signals and a really full disk.
# The table has the minimum and the maximum of three rounds until all processes had ended, on a busy machine with two
# cores:
#
# | event | message | exit code | seconds | lost |
# |---|---|---|---|---|
# | an exception in process 0, or in 1 | its traceback | 13 | 0.2 to 0.6 | steps |
# | SIGKILL of process 0, the coordinator, or of 1 | process and signal | 137 | 0.2 to 0.4 | steps |
# | `exit(0)` too early, in process 0 or in 1 | which, and where the other waits | 1 | 1.9 to 2.2 | steps |
# | SIGSTOP of process 1 | the stacks of both; the signal | 1 | time-out + 0.6 to 1.2 | steps |
# | the coordinator's port is taken | which, and one that is free | 2 | 1.4 to 2.0 with start | nothing |
# | process 1 does not come | which is missing | 13 | time-out + 3.9 to 5.8 with start | nothing |
# | another program in process 1 | hashes, line, first difference | 13 | 0.5 to 0.8 | nothing |
# | data of another shape in process 1 | the leaf, both shapes | 13 | 0.6 to 1.2 | nothing |
# | another layout in process 1 | both rules | 13 | 0.8 to 1.6 | nothing |
# | the disk is full while saving | step, file and reason | 13 | 1.5 to 2.5 | steps |
# | SIGKILL of process 1 while saving | process and signal | 137 | 0.9 to 3.0 | steps |
# | a truncated file in the newest checkpoint | the file and its bytes | 1 | 2.8 to 4.0 with start | steps |
# | Ctrl-C, or SIGTERM of the launcher | that it was stopped | 130, 143 | 0.2 to 0.9 | steps |
# | SIGKILL of the launcher | nothing; all end with it, on Linux | 137 | 0.0 to 0.2 | steps |
#
# *Steps* means the steps since the last checkpoint; for a truncated one, since the checkpoint before it. No other
# checkpoint was lost, and no process was left behind. `benchmarks/kill_during_save.py` kills a process at 50 random
# moments while it saves repeatedly. At 49 of them a checkpoint was being written. Each time, the newest checkpoint was
# complete: the last announced one, or the one being saved. The same held for two processes that save together, one of
# which was killed, 12 times.
#
# Not tested: machines that lose power or their network, and real GPUs.
