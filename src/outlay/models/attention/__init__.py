"""Attention that never writes its scores to memory: kernels of the hardware where it has some, else block by block."""
