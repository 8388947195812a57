"""Attention that never writes its scores to memory: fused kernels where available, otherwise block by block."""
