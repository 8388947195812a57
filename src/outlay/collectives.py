"""Collectives for steps that run in mode `manual`, where those of `jax.lax` have a trap."""

from outlay.program.manual_collectives import axis_coordinates, halo, mean_over, ring_shift, sum_scatter

__all__ = ["axis_coordinates", "halo", "mean_over", "ring_shift", "sum_scatter"]
