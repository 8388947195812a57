"""Run Brains as recipes: inputs, runs, recordings, results."""

LAYOUTS = ("copies", "by-neuron", "by-module")
"""The layouts of a Brain, for a shell that completes a command."""
