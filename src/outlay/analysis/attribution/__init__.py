"""Attribute what a compiled program does to leaves of the state and lines of the source."""
