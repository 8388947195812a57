"""Run Brains as recipes: inputs, runs, recordings, results."""
