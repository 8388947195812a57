"""Synapses: what makes current of the spikes that arrive."""
