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
# # Several processes
#
# On more than one machine, a JAX program runs in several processes. Each runs the same code, drives its own devices,
# and holds its own shards of every array. This tutorial starts two processes on one machine, and shows what is
# different: how processes are numbered, how to make an array that no single process holds, and how to read its numbers.
#
# The programs below are files. `terminal.run` runs a command as you would in a terminal.

# %%
import re

import numpy as np
import terminal

terminal.work_in_a_new_folder("who.py", "turns.py", "arrays.py", "pencils.py", "../../../examples/pencil_fft.py")

# %% [markdown]
# ## Who is who
#
# A program joins a job with one line, `outlay.join()`, before anything uses JAX's devices.
#
# ```{literalinclude} programs/who.py
# :language: python
# ```
#
# One command starts it in two processes with four simulated devices each:

# %%
printed = terminal.run("outlay launch -n 2 --devices-per-process 4 -- python who.py")

# %% [markdown]
# The output starts with a table of processes, machines and devices. Then each line is prefixed with the number of its
# process.
#
# Both processes see all eight devices, and `x` is *one* array over them: its shape is (8,) for both, its picture is
# the same for both. Each holds four of the eight shards, so `x` is not fully addressable. A device is written
# `process:index`. The last array was made without a mesh: each process has its own, and the picture says
# whose it is.

# %%
first, second = (terminal.of_process(number, printed) for number in (0, 1))
for number, (text, mine) in enumerate([(first, "[[0], [1], [2], [3]]"), (second, "[[4], [5], [6], [7]]")]):
    assert "8 devices hold x, 4 of them are mine" in text
    assert f"a shard is (1,), mine are {mine}" in text
    assert "fully addressable: False, fully replicated: False" in text
    assert text.count("8 simulated devices in 2 processes") == 1
    assert re.search(r"0:0 +│ +0:1 +│ +0:2 +│ +0:3 +│ +1:0 +│ +1:1 +│ +1:2 +│ +1:3", text)
    assert f"whole, on device {number}:0" in text
    assert f"local to process {number}" in text
pictures = [text[text.index("mesh x=8") : text.index("1 simulated device,")] for text in (first, second)]
assert pictures[0] == pictures[1]

# %% [markdown]
# ## In turns
#
# Lines appear as they are written. With `--in-order` they are sorted by step, and within a step by process.
# `outlay.fit` reports the end of each step; in your own loop, call `beat`. For a barrier, which no process passes
# before all have arrived, use JAX's `sync_global_devices`.
#
# ```{literalinclude} programs/turns.py
# :language: python
# ```

# %%
printed = terminal.run("outlay launch -n 2 --devices-per-process 1 --in-order -- python turns.py")
lines = re.findall(r"^\[\d\] (step.*)$", printed, re.MULTILINE)
assert lines == [f"step {step} of process {process}" for step in (1, 2, 3) for process in (0, 1)]

# %% [markdown]
# ## Global arrays
#
# No process can hold a large array as a whole. So each process passes what it has: a piece (`from_pieces`), the same
# numpy array (`put`, which does not compare it between processes as `jax.device_put` does), or the name of a file, of
# which only its own slices are read (`from_file`). To see numbers again, `gather` fetches the whole, `slice_of` a part.
#
# ```{literalinclude} programs/arrays.py
# :language: python
# ```

# %%
np.save("data.npy", np.repeat(np.arange(64, dtype=np.float32), 8192).reshape(64, 8192))
printed = terminal.run("outlay launch -n 2 --devices-per-process 4 -- python arrays.py")

# %% [markdown]
# `np.asarray` of an array that is spread over processes raises an error in JAX. `outlay.show` of such an
# array says what to do instead. A wrong source raises the same error in all processes, so that none waits for another.

# %%
first, second = (terminal.of_process(number, printed) for number in (0, 1))
assert "my first piece (4, 2) begins with [0 1 8 9]" in first
assert "my first piece (4, 2) begins with [32 33 40 41]" in second
assert "[[0, 1], [2, 3], [4, 5], [6, 7]]" in first
assert "[[8, 9], [10, 11], [12, 13], [14, 15]]" in second
for text in (first, second):
    assert "from a file of 2097152 bytes, I hold 1048576" in text
    assert re.findall(r"shards of (.*)", text) == ["(2048, 2048)", "(4096, 1024)", "(1024, 4096)"]
    assert "outlay.arrays.gather(x) in every process fetches the whole" in text
    assert "gathered: [1. 1. 1. 1. 1. 1. 1. 1.]" in text
    assert "pieces of (256, 64)" in text
    assert "in every process: (6, 128), first column [ 384  512  640  768  896 1024]" in text
    assert "broadcast from process 1: [ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15]" in text
    assert "there are 2 processes, numbers 0 to 1" in text

# %% [markdown]
# ## Pencils
#
# Some computations need first one dim whole on every device, then another. That takes a redistribution: every device
# sends what it had and receives what it needs, and the global values do not change. On a 4 x 2 mesh, an array goes from
# `P("a", "b")` to `P("b", "a")`:
#
# ```{literalinclude} programs/pencils.py
# :language: python
# ```
#
# The last line runs `examples/pencil_fft.py`, a Fourier transform of three dims that moves from pencils to pencils
# twice. Here is its core:
#
# ```{literalinclude} ../../examples/pencil_fft.py
# :language: python
# :pyobject: fft_along
# ```

# %%
printed = terminal.run("outlay launch -n 2 --devices-per-process 4 -- python pencils.py")

# %% [markdown]
# Where the first picture has a row of devices, the second has a column. The transform is numpy's, up to rounding.

# %%
grids = [re.findall(r"(?<=│ )\d:\d", picture) for picture in printed.split("mesh a=4")[1:3]]
assert grids[0] == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1", "1:2", "1:3"]
assert grids[1] == ["0:0", "0:2", "1:0", "1:2", "0:1", "0:3", "1:1", "1:3"]
assert printed.count("same values") == 2
assert float(re.search(r"numpy's FFT, relative: (\S+)", printed)[1]) < 1e-5

# %% [markdown]
# ## Where next
#
# [On a SLURM cluster](on_a_slurm_cluster.py): the same programs, started by `srun`. [When something
# dies](when_something_dies.py): what becomes of a job then, and of what it had saved. [Write an
# application](../guides/write_an_application.md): particles that attract each other, by this transform, with halos and
# a run of their own. All options are in the guide [several processes](../guides/several_processes.md).
