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
# The processes of a job need one another: each waits in every collective for all the others. So when one dies, hangs
# or goes home early, the rest would wait, in plain JAX for five minutes or for ever. This tutorial kills processes,
# and looks at three things: how soon all have ended, what is said, and what is lost.

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
# First, for comparison, a run that nothing disturbs, on one device:

# %%
start = time.monotonic()
printed = terminal.run("""
outlay run digits --devices 1 --layout dp --steps 30 --run-folder undisturbed 2> progress.txt |
  grep -e 'ran  ' -e 'training  '
""")
seconds_of_a_run = time.monotonic() - start

# %% [markdown]
# Now the same training in two processes with four devices each. A checkpoint is saved every five steps, and as soon
# as that of step 10 is there, process 1 is killed with the signal that nobody can catch. That is also what the system
# does when memory runs out.

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
# All have ended. Process 0 was in the middle of a collective with a process that was no longer there, and complained
# about it at length. That is kept in a file, since it says nothing about the cause.

# %%
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        print(f"process {pid} has gone")
    else:
        raise AssertionError(f"process {pid} was left behind")

# %% [markdown]
# What is lost is what came after the last checkpoint. It was killed perhaps while it saved the next one, but a
# checkpoint gets its name only when it is whole.

# %%
printed = terminal.run("outlay checkpoint show run | head -n 1")
saved = [int(step) for step in re.findall(r"\d+", printed.partition("steps")[2])]
assert {5, 10} & set(saved)
assert all(step % 5 == 0 for step in saved)

# %% [markdown]
# The run goes on from there, in one process with four devices, because that is what is left:

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
# Batches, dropout and the order of examples follow from the step, not from the process that asks. So the losses are
# those of the run that nothing disturbed, up to the order in which sums are taken.
#
# ## A mistake in one process
#
# ```{literalinclude} programs/mistake.py
# :language: python
# ```
#
# The traceback of the process that failed first comes last, whole. With `--max-restarts` the job is then started
# again, and `outlay.join().restart` says how often that has happened. `outlay run` continues from the last checkpoint
# then.

# %%
printed = terminal.run("outlay launch -n 2 --devices-per-process 4 --max-restarts 1 -- python mistake.py")
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
# Nothing fails here: both processes wait. What is too long, only you know, or the steps that the job has taken so far.
# Here it shall be twice what the whole first run took, with its start and compiling. Without a sign of life for that
# long, all processes say where they are, and the job ends:

# %%
printed = terminal.run(
    f"outlay launch -n 2 --devices-per-process 4 --stuck-after {2 * seconds_of_a_run:.0f} -- python stuck.py",
    exit_code=1,
)
assert "the job is stuck" in printed
assert "in next_batch" in printed.partition("process 1 is here:")[2]

# %% [markdown]
# Process 1 stands in `next_batch`, and process 0 waits for it.
#
# ## Every way to die
#
# `benchmarks/faults.py` has all of this happen to two processes, with real signals and a disk that is really full,
# and measures. These are the fewest and the most seconds of three rounds until all had ended, on a machine of two
# cores that was busy with other work:
#
# | event | what is said | exit code | seconds | lost |
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
# *Steps* are those since the last checkpoint: of a truncated one, since the one before it. No other checkpoint was
# lost, and no process was left behind. `benchmarks/kill_during_save.py` kills a process at 50 random moments while it
# saves again and again. At 49 of them a checkpoint was being written. After each, the newest was whole, and it was
# the last that had been announced, or the one being saved. The same held for two processes that save together, one of
# which was killed, 12 times.
#
# What has not been tried: machines that lose power or their network, and real GPUs.
