"""Estimate the time of a step: its work over the speeds of a target, with all assumptions listed."""
