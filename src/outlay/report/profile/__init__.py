"""Predicted and measured together: a trace of JAX's profiler joined with what `explain` says of each operation."""
