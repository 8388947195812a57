"""Recipes that are examples of what a user can write: installed and found by name, and imported by nothing else."""
