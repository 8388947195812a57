"""Stages of a pipeline as programs of their own devices: the loss cut into stages, run in the order of a schedule."""
