"""Somas: what makes spikes of current."""
