"""One pass over the pairs of a population in a step, in machine code or as a kernel for GPUs: `--kernel`."""
