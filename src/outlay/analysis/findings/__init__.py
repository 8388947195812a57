"""Find what costs more than it must, and the edit that fixes it."""
