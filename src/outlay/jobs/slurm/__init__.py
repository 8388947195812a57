"""The batch script that runs a recipe on a SLURM cluster. Nothing here imports JAX."""
