"""Attention whose tokens are split over devices: rings, gathers and all-to-alls."""
