"""Spikers: numbers to spikes."""
