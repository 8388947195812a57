"""Checkpoints that any arrangement of devices can continue from: written beside the training, whole or not at all."""
