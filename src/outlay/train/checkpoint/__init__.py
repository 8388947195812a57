"""Asynchronous, atomic checkpoints that any layout, mesh and number of processes can restore."""
