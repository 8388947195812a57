"""Batch scripts for SLURM: their presets, their options, the script, and handing it in; nothing here is a process."""
