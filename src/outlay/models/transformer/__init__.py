"""A decoder-only transformer language model in Flax NNX: single-device code."""
