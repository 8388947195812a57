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
# # On a SLURM cluster
#
# On a cluster you do not start processes yourself. You hand a batch script to SLURM, which finds the nodes, and
# `srun` in that script starts one process for each *task*. This tutorial writes such scripts, and then runs one, on
# this machine.
#
# ```{note}
# This page was made without a cluster. The scripts are shown, not submitted. Where one runs below, a
# small script replaces `srun`: it starts two processes with the variables that SLURM would set, each with
# simulated devices. Requesting real GPUs with `--gres=gpu` was not tested here.
# ```

# %%
import re

import terminal

terminal.work_in_a_new_folder("who.py", "../../guides/line.py", commands=["srun"])

# %% [markdown]
# ## Two ways to use four GPUs
#
# One process can drive all GPUs of its node: one node, one task, four GPUs.

# %%
one_task = terminal.run(
    "outlay slurm run digits --nodes 1 --tasks-per-node 1 --gpus-per-node 4 --time 20:00:00 --layout fsdp"
)

# %% [markdown]
# Or each GPU has a process of its own, which is what JAX's documentation advises for many nodes. Here are two nodes
# with four GPUs each:

# %%
two_nodes = terminal.run(
    "outlay slurm run digits --nodes 2 --gpus-per-node 4 --cpus-per-task 10 --time 20:00:00 --layout fsdp"
)

# %% [markdown]
# That is two nodes, four tasks on each, eight processes. The last line is the same in both scripts. Nothing in it
# says how many processes there are, which one this is, or where they meet.

# %%
for script, nodes, tasks in ((one_task, 1, 1), (two_nodes, 2, 4)):
    assert f"#SBATCH --nodes={nodes}\n" in script
    assert f"#SBATCH --ntasks-per-node={tasks}\n" in script
    assert "#SBATCH --gres=gpu:4\n" in script
assert "# 8 processes in all, each with 1 GPU." in two_nodes
assert "# 1 process in all, each with 4 GPUs." in one_task
command = "srun --label --kill-on-bad-exit=1 outlay run digits --layout fsdp"
assert one_task.splitlines()[-1] == two_nodes.splitlines()[-1] == command

# %% [markdown]
# ## No arguments
#
# `outlay.join()` finds it all in the variables that `srun` sets for each task: `SLURM_PROCID`,
# `SLURM_STEP_NUM_TASKS`, the first of `SLURM_STEP_NODELIST`, and a port from `SLURM_JOB_ID`. So a program of your own
# needs no arguments. This is `who.py` from [several processes](several_processes.py), unchanged:

# %%
printed = terminal.run("""
export JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4
srun --label python who.py | grep -e 'I am' -e 'hold x' -e 'shard'
""")
for task, mine in enumerate(["[[0], [1], [2], [3]]", "[[4], [5], [6], [7]]"]):
    assert f"{task}: I am process {task} of 2" in printed
    assert f"{task}: a shard is (1,), mine are {mine}" in printed
assert len(re.findall("8 devices hold x, 4 of them are mine", printed)) == 2

# %% [markdown]
# This is what the stand-in for `srun` does:
#
# ```{literalinclude} programs/srun
# :language: bash
# ```
#
# Where only some variables are set, as in a batch script that forgot `srun`, nothing waits for processes that never
# come:

# %%
printed = terminal.run("SLURM_PROCID=0 SLURM_JOB_ID=77 python who.py 2>&1 | grep -A 9 JoinError")
assert "SLURM_STEP_NUM_TASKS (how many there are)" in printed
assert "fix: start the processes with srun" in printed

# %% [markdown]
# ## A whole job
#
# Now a script for two tasks without GPUs, with a variable that gives each task four simulated devices, run as SLURM
# would run it. The recipe is `line.py` of the guide [Use the command line](../guides/command_line.md), which fits a
# line:

# %%
printed = terminal.run("""
outlay slurm run line.py:recipe --gpus-per-node 0 --tasks-per-node 2 --env JAX_PLATFORMS=cpu \\
  --env XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
  --layout fsdp --steps 20 --checkpoint-every 10 --run-folder run > job.sh
bash job.sh > job.out
grep -e 'ran  ' -e 'training  ' -e 'held out' job.out
outlay checkpoint show run | head -n 1
""")
assert "mesh data=8 (8 simulated devices in 2 processes)" in printed
assert "after 20 steps" in printed
assert "whole checkpoints of steps 10, 20" in printed

# %% [markdown]
# Both processes took part in one run: process 0 wrote metrics and report, and both wrote their shards of the
# checkpoints. The guide [On a SLURM cluster](../guides/slurm.md) shows what else such a script can do: requeue itself
# before the time limit and continue, load modules, follow your site's template.
