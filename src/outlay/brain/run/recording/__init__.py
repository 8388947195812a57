"""What is kept of a run: which steps, and where."""
