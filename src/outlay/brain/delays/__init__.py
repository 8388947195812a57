"""Delays: how long spikes travel."""
